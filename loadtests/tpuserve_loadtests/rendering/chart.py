"""Charts as data: curves, bars and rules between two axes, texts of the tooltips, and the numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.rendering.scales import Linear, Scale, three_digits

# Units, with their seconds and the shortest axis in seconds for which they apply.
_UNITS: Final = (("s", 1.0, 0.0), ("min", 60.0, 300.0), ("h", 3600.0, 4 * 3600.0))


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
    """The table under a chart. With `places`, the x values of its rows, each row is also a tooltip."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    places: Sequence[float] = ()

    @property
    def columns(self) -> list[Column]:
        rows = [(row[0], zip(self.headings[1:], row[1:], strict=True)) for row in self.rows]
        texts = ["\n".join([name, *(f"{heading} {cell}" for heading, cell in cells)]) for name, cells in rows]
        return list(map(Column, self.places, texts))


@dataclass(frozen=True, slots=True)
class Key:
    """A legend entry: the name of bars of a `style`, or of dots that are `good` or not."""

    name: str
    style: int | None = None
    good: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `label` describes it in a sentence for screen readers. `keys` are further legend entries.

    Without `columns`, the tooltips are those of the numbers.
    """

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
