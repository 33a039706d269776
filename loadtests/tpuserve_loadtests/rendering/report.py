"""The report of a command, with one type for all commands and renderers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.scales import Linear, Scale, three_digits


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. `title` names the quantity and its unit."""

    title: str
    scale: Scale


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of points from left to right. A y of None is a gap. With `dots`, each point has a mark."""

    name: str
    points: Sequence[tuple[float, float | None]]
    style: int = 0
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A single mark: filled if `good`, hollow and red otherwise."""

    x: float
    y: float
    good: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `start` to `end` on the x axis, and from `floor` to `y`."""

    start: float
    end: float
    y: float
    style: int = 0
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Label:
    """A text next to a point, omitted if it would overlap another label."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A dashed line across the chart with a name at its end, horizontal at `y` or vertical at `x`."""

    text: str
    y: float | None = None
    x: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A tooltip for the area around `x`. Line breaks separate its lines."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Numbers:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Key:
    """A legend entry: the name of bars of a `style`, or of dots that are `good` or not."""

    name: str
    style: int | None = None
    good: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `label` describes it in a sentence for screen readers. `keys` are further legend entries."""

    title: str
    label: str
    x: Axis
    y: Axis
    numbers: Numbers
    curves: Sequence[Curve] = ()
    dots: Sequence[Dot] = ()
    bars: Sequence[Bar] = ()
    labels: Sequence[Label] = ()
    rules: Sequence[Rule] = ()
    columns: Sequence[Column] = ()
    keys: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and the ends of its interval; `kind` names its colour."""

    name: str
    ratio: float
    low: float
    high: float
    kind: str


@dataclass(frozen=True, slots=True)
class Intervals:
    """Ratios with their intervals, a row each. Ratios within `band` of 1 count as the same; `legend` explains this."""

    title: str
    label: str
    axis: str
    legend: str
    band: float
    rows: Sequence[Interval]


# "plan" stands for a dry run.
Kind: TypeAlias = Literal["good", "bad", "warn", "plan"]


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict of a report in a few words, with its reasons. The first reason is the cause."""

    kind: Kind
    words: str
    reasons: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        if not self.reasons:
            return f"{self.words}."
        joint = "; " if ": " in self.words else ": "
        return f"{self.words}{joint}{self.reasons[0].rstrip('.')}."


@dataclass(frozen=True, slots=True)
class Notice:
    words: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. `is_total` marks the total of the other rows.

    `good` colours the last cell. `note` is text below the name. `anchor` is the section that the name links to.
    """

    name: str
    cells: Sequence[str]
    is_total: bool = False
    good: bool | None = None
    note: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers, or of `words`, which a page may stack. Renderers omit a table without rows.

    On terminals, `names` aligns the first column or lets it fold. With "fitting" margins, narrow terminals first omit
    the margins, and then the columns in `spare`.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    intro: str = ""
    words: bool = False
    names: Literal["fold", "left", "right"] = "fold"
    spare: Collection[str] = ()
    margins: Literal["always", "fitting"] = "always"


@dataclass(frozen=True, slots=True)
class Charts:
    """A section of charts next to each other. Renderers omit it without charts."""

    title: str
    charts: Sequence[Chart | Intervals | None]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole; `size` is its absolute size as text."""

    name: str
    share: float
    size: str


@dataclass(frozen=True, slots=True)
class Shares:
    title: str
    shares: Sequence[Share]
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Remark:
    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Related sections below a common headline. `anchor` is the target of links to the group."""

    title: str
    headline: Headline
    sections: "Sequence[Section]"
    anchor: str


@dataclass(frozen=True, slots=True)
class Text:
    """One or more lines on a terminal. With `folds`, long lines break at the terminal's width."""

    text: str
    folds: bool = False


# A part of a page. None if there is nothing to show.
Section: TypeAlias = Table | Charts | Shares | Remark | Group | None
# A part of the output on a terminal.
Printed: TypeAlias = Table | Text


# A row of machine-readable cells, by heading.
Cells: TypeAlias = Mapping[str, Any]
Document: TypeAlias = Any  # any JSON value

# Names of cases in several reports. CI systems track a case by its name, so names are stable and contain no figures.
ANSWERED: Final = "requests are answered"
GENERATOR: Final = "the load generator is not the limit"


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: failed with a `problem`, else skipped with a reason in `skipped`, else passed.

    `seconds` is the duration, if known.
    """

    name: str
    problem: str = ""
    skipped: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page with charts.

    `origin` is a line with the runs, their time and the version of the load tests. `settings` are shown by name.
    `notice` comes first. If `tiles` is None, the page omits their section.
    """

    title: str
    origin: str
    headline: Headline
    tiles: Sequence[Tile] | None
    sections: Sequence[Section]
    settings: Mapping[str, str]
    notice: Notice | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a command. Each format is a function, because a command needs few formats.

    `kind` is the command, `subject` the model or scenario, and `statement` the result in words. `printed` is for a
    terminal, `document` for JSON, and `rows` for CSV. `runs` are the histogram log's runs by name. With `in_windows`,
    the log has a histogram for each window.
    """

    kind: str
    subject: str
    exit_code: int
    cases: Sequence[Case]
    printed: Callable[[], Sequence[Printed]]
    document: Callable[[], Document]
    page: Callable[[], Page]
    rows: Callable[[], Sequence[Cells]] = list
    runs: Mapping[str, Measured] = field(default_factory=dict)
    in_windows: bool = True
    statement: str = ""


# Units, with their seconds and the shortest axis in seconds for which they apply.
_UNITS: Final = (("s", 1.0, 0.0), ("min", 60.0, 300.0), ("h", 3600.0, 4 * 3600.0))


class TimeAxis:
    def __init__(self, seconds: float) -> None:
        self._unit, self._size, _ = [unit for unit in _UNITS if seconds >= unit[2]][-1]
        self.axis = Axis(f"time, {self._unit}", Linear(0.0, seconds / self._size))

    def of(self, seconds: float) -> float:
        """Convert seconds to the axis unit."""
        return seconds / self._size

    def middle(self, start_s: float, seconds: float) -> float:
        return self.of(start_s + seconds / 2)

    def period(self, start_s: float, seconds: float) -> str:
        """Describe a period in words."""
        return f"{three_digits(self.of(start_s))} to {three_digits(self.of(start_s + seconds))} {self._unit}"


def known_values(curves: Iterable[Curve]) -> list[float]:
    """Return the y of all points, without gaps."""
    return [y for curve in curves for _, y in curve.points if y is not None]
