"""The report of a command, with one type for all commands and renderers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.chart import Chart, Intervals

# Where a section is shown: on pages, on terminals, or on both.
Place: TypeAlias = Literal["both", "page", "terminal"]
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

    `good` colours the last cell. `note` is text below the name. `anchor` is the section that the name links to. `share`
    is a part of a whole (0 to 1), which a page draws as a bar.
    """

    name: str
    cells: Sequence[str]
    is_total: bool = False
    good: bool | None = None
    note: str = ""
    anchor: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers, or of `words`, which a page may stack. Renderers omit a table without rows.

    On terminals, `names` aligns the first column or lets it fold, and `printed_title` replaces the title. With
    "fitting" margins, narrow terminals first omit the margins, and then the columns in `spare`.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    intro: str = ""
    words: bool = False
    names: Literal["fold", "left", "right"] = "fold"
    spare: Collection[str] = ()
    margins: Literal["always", "fitting"] = "always"
    printed_title: str = ""
    on: Place = "both"


@dataclass(frozen=True, slots=True)
class Charts:
    """A section of charts next to each other, on pages alone. Renderers omit it without charts."""

    title: str
    charts: Sequence[Chart | Intervals | None]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Lines of text. A terminal omits the title."""

    lines: Sequence[str]
    title: str = ""
    on: Place = "both"


@dataclass(frozen=True, slots=True)
class Group:
    """Related sections below a common headline. `anchor` is the target of links to the group."""

    title: str
    headline: Headline
    sections: "Sequence[Section]"
    anchor: str
    on: Place = "both"


# A part of a page or of the output on a terminal. None if there is nothing to show.
Section: TypeAlias = Table | Charts | Remark | Group | None


# A row of machine-readable cells, by heading.
Cells: TypeAlias = Mapping[str, Any]
Document: TypeAlias = Any  # any JSON value

# Names of cases in several reports. CI systems track a case by its name, so names are stable and contain no figures.
ANSWERED: Final = "requests are answered"
GENERATOR: Final = "the load generator is not the limit"
ENDED: Final = "the load ran to its end"


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: failed with a `problem`, else without a result for an `error`, else skipped, else passed.

    `seconds` is the duration, if known.
    """

    name: str
    problem: str = ""
    skipped: str = ""
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The description of a report, which a page shows with charts and a terminal without.

    `origin` is a line with the runs, their time and the version of the load tests. `settings` are shown by name.
    `notice` comes first. If `tiles` is None, the page omits their section. On a terminal, `opening` replaces the
    headline.
    """

    title: str
    origin: str
    headline: Headline
    tiles: Sequence[Tile] | None
    sections: Sequence[Section]
    settings: Mapping[str, str]
    notice: Notice | None = None
    opening: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a command. Each format is a function, because a command needs few formats.

    `kind` is the command, `subject` the model or scenario, and `statement` the result in words. `page` is for HTML and
    terminals, `document` for JSON, and `rows` for CSV. `runs` are the histogram log's runs by name. With `in_windows`,
    the log has a histogram for each window. A `terse` report has only its opening on a terminal.
    """

    kind: str
    subject: str
    exit_code: int
    cases: Sequence[Case]
    document: Callable[[], Document]
    page: Callable[[], Page]
    rows: Callable[[], Sequence[Cells]] = list
    runs: Mapping[str, Measured] = field(default_factory=dict)
    in_windows: bool = True
    statement: str = ""
    terse: bool = False
