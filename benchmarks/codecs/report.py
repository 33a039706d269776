"""What the codec benchmarks print: a table each, with ratios and goals."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class CodecCost:
    """One comparison, in its table's unit; `goal`, where there is one, is the most ours may take on a quiet machine."""

    what: str
    ours: float
    plain: float
    goal: float | None = None


@dataclass(frozen=True)
class CodecTable:
    """Costs a call in `unit` (ms or us), and how each figure came about."""

    title: str
    unit: str
    costs: Sequence[CodecCost]


def show(tables: Sequence[CodecTable], console: Console) -> None:
    """Print them."""
    for table in tables:
        grid = Table(title=table.title, title_justify="left")
        grid.add_column("what")
        for name in (f"here, {table.unit}", f"plainly, {table.unit}", "ratio", "goal", ""):
            grid.add_column(name, justify="right")
        for cost in table.costs:
            goal = "" if cost.goal is None else f"<= {cost.goal:g}"
            verdict = "" if cost.goal is None else "reached" if cost.ours <= cost.goal else "missed"
            ratio = f"{cost.plain / cost.ours:.1f}"
            grid.add_row(cost.what, f"{cost.ours:.2f}", f"{cost.plain:.2f}", ratio, goal, verdict)
        console.print(grid)


def to_json(tables: Sequence[CodecTable]) -> list[dict[str, object]]:
    """The same as a document."""
    return [
        {
            "title": table.title,
            "unit": table.unit,
            "costs": [
                {"what": c.what, "here": c.ours, "plainly": c.plain, "ratio": c.plain / c.ours, "goal": c.goal}
                for c in table.costs
            ],
        }
        for table in tables
    ]
