"""Output of the client benchmark: medians, ratios of the same round, and goals."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.client.libraries import OWN, RAW
from benchmarks.client.turns import Burst, Load, Turn
from benchmarks.harness.targets import Protocol

# CPU of tpuserve_client relative to the library below it.
RATIO_GOALS: Final[Mapping[Protocol, float]] = {"grpc": 1.5, "rest": 1.15}
# CPU of cold calls relative to warm calls.
BURST_GOAL: Final = 2.0
IMPORT_GOAL_MS: Final = 150.0


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of one library under one load.

    `ratio` is the median of the ratios to the reference in the same round, or None for the reference. `goal` is the
    largest acceptable ratio, or for an import the largest acceptable CPU time in ms, or None.
    """

    section: str
    what: str
    library: str
    cpu_ms: float
    ratio: float | None = None
    goal: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached, or None without a goal."""
        if self.goal is None:
            return None
        return (self.cpu_ms if self.ratio is None else self.ratio) <= self.goal


def prediction_lines(turns: Sequence[Turn]) -> list[Line]:
    """Return a line for each load and library, in the order of the loads."""
    found: dict[Load, dict[str, list[float]]] = {}
    for turn in turns:
        found.setdefault(turn.load, {}).setdefault(turn.library, []).append(turn.cpu_us / 1000)
    return [
        _compared("CPU per prediction", str(load), library, costs[library], costs[RAW[load.protocol]], load.protocol)
        for load, costs in found.items()
        for library in (OWN, *sorted(costs.keys() - {OWN}))
    ]


def burst_lines(bursts: Sequence[Burst], calls: int) -> list[Line]:
    """Return a line for the cold calls of each library, relative to its warm calls."""
    lines = []
    for library in dict.fromkeys(burst.library for burst in bursts):
        mine = [burst for burst in bursts if burst.library == library]
        goal = BURST_GOAL if library == OWN else None
        ratio = median(burst.cold_ms / burst.warm_ms for burst in mine)
        section, what = f"{calls:,} concurrent asyncio REST calls", "{}, CPU per call"
        cold, warm = (median(getattr(burst, name) for burst in mine) / calls for name in ("cold_ms", "warm_ms"))
        lines += [
            Line(section, what.format("cold"), library, cold, ratio, goal),
            Line(section, what.format("warm"), library, warm),
        ]
    return lines


def import_lines(costs_ms: Mapping[str, Sequence[float]]) -> list[Line]:
    """Return a line for each import."""
    return [
        Line("Import beyond numpy", what, library, median(costs), goal=IMPORT_GOAL_MS if library == OWN else None)
        for what, costs in costs_ms.items()
        for library in [what.removeprefix("import ") if what in ("import grpc", "import httpx") else OWN]
    ]


def show(lines: Sequence[Line], console: Console) -> None:
    """Print a table for each section."""
    for section in dict.fromkeys(line.section for line in lines):
        table = Table(title=section, title_justify="left")
        for name in ("load", "library"):
            table.add_column(name)
        for name in ("CPU, ms", "ratio", "goal", "verdict"):
            table.add_column(name, justify="right")
        for line in lines:
            if line.section == section:
                table.add_row(*_cells(line))
        console.print(table)


def to_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    """Return the lines as JSON data."""
    return [{**asdict(line), "is_met": line.is_met} for line in lines]


def _compared(
    section: str, what: str, library: str, costs: Sequence[float], raw: Sequence[float], protocol: Protocol
) -> Line:
    if library == RAW[protocol]:
        return Line(section, what, library, median(costs))
    ratio = median(mine / other for mine, other in zip(costs, raw, strict=True))
    return Line(section, what, library, median(costs), ratio, RATIO_GOALS[protocol] if library == OWN else None)


def _cells(line: Line) -> tuple[str, ...]:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    unit = " ms" if line.ratio is None else ""
    goal = "" if line.goal is None else f"<= {line.goal:g}{unit}"
    verdict = {None: "", True: "reached", False: "missed"}[line.is_met]
    cpu = f"{line.cpu_ms:.0f}" if line.cpu_ms >= 10 else f"{line.cpu_ms:.3f}"
    return line.what, line.library, cpu, ratio, goal, verdict
