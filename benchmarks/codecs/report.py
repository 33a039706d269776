"""Output of the codec benchmarks: tables with ratios and goals."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class CodecCost:
    """One comparison, in its table's unit. `goal` is the largest acceptable `tpuserve` on a quiet machine, or None."""

    what: str
    tpuserve: float
    plain: float
    goal: float | None = None


@dataclass(frozen=True)
class CodecTable:
    """Costs per call in `unit` (ms or us), and the title of the table."""

    title: str
    unit: str
    costs: Sequence[CodecCost]


def show(tables: Sequence[CodecTable], console: Console) -> None:
    """Print the tables."""
    for table in tables:
        grid = Table(title=table.title, title_justify="left")
        grid.add_column("operation")
        for name in (f"tpuserve, {table.unit}", f"baseline, {table.unit}", "ratio", "goal", "verdict"):
            grid.add_column(name, justify="right")
        for cost in table.costs:
            goal = "" if cost.goal is None else f"<= {cost.goal:g}"
            verdict = "" if cost.goal is None else "reached" if cost.tpuserve <= cost.goal else "missed"
            ratio = f"{cost.plain / cost.tpuserve:.1f}"
            grid.add_row(cost.what, f"{cost.tpuserve:.2f}", f"{cost.plain:.2f}", ratio, goal, verdict)
        console.print(grid)


def to_json(tables: Sequence[CodecTable]) -> list[dict[str, object]]:
    """Return the tables as JSON data."""
    return [
        {
            "title": table.title,
            "unit": table.unit,
            "costs": [
                {"what": c.what, "here": c.tpuserve, "plainly": c.plain, "ratio": c.plain / c.tpuserve, "goal": c.goal}
                for c in table.costs
            ],
        }
        for table in tables
    ]
