"""Cost and energy of predictions: lines for a single load, and a table for several."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from tpuserve_loadtests.judgement.spending import NO_COST, Spending
from tpuserve_loadtests.monitoring.energy import Energy, Unmeasured
from tpuserve_loadtests.rendering.report import Remark, Row, Section, Table, Tile
from tpuserve_loadtests.rendering.scales import three_digits, three_significant

# Loads by name, in order.
Spendings: TypeAlias = Sequence[tuple[str, Spending]]
# Cells by heading. A cell is an empty text for an unknown figure.
_Columns: TypeAlias = dict[str, Callable[[Spending], str]]

TITLE: Final = "Cost and energy"
_PREDICTION: Final = "A prediction is a row of a successful request."
_MACHINE: Final = (
    "The power is that of this whole machine, with the server, the load generator and all other processes."
)


def sections(kind: str, rows: Spendings, printed: Spending | None = None) -> list[Section]:
    """Return a table with a row for each load, and the reason why energy is unknown. `kind` heads the names.

    A terminal shows `printed` in lines instead of the table.
    """
    spendings = [spending for _, spending in rows]
    columns, reasons = _columns(spendings), _unmeasured_lines(spendings)
    lines = Remark([*(measured_lines(printed) if printed else []), *reasons], on="terminal")
    if not columns:
        return [lines, Remark(reasons, TITLE, on="page")]
    has_energy = any(isinstance(spending.energy, Energy) for spending in spendings)
    intro = " ".join([_PREDICTION, *([_MACHINE] if has_energy else []), *reasons])
    cells = [Row(name, [cell(spending) or "-" for cell in columns.values()]) for name, spending in rows]
    table = Table(_title(rows), [kind, *columns], cells, intro, names="right", margins="fitting")
    return [replace(table, on="page" if printed else "both"), lines]


def added_to(statement: str, spending: Spending | None) -> str:
    """Return the result in words, followed by the lines on the cost and on a measured energy."""
    return "\n".join([statement, *([] if spending is None else measured_lines(spending))])


def measured_lines(spending: Spending) -> list[str]:
    """Describe the cost and a measured energy of a load, a line each, as far as they are known."""
    return [*_cost_lines(spending), *_energy_lines(spending)]


def tiles(spending: Spending | None) -> list[Tile]:
    """Return the tile of the cost, if there is a price."""
    if spending is None or spending.price is None:
        return []
    cost = spending.per_million_predictions
    figure = "none" if cost is None else _money(cost, spending)
    return [Tile("cost per million predictions", figure, NO_COST if cost is None else f"at {spending.price}")]


def csv_cells(spending: Spending | None) -> dict[str, Any]:  # values of several types
    """Return the cells of a CSV row, by heading. Unknown figures are None."""
    return {
        "cost_per_million_predictions": spending.per_million_predictions if spending else None,
        "joules_per_prediction": spending.joules_per_prediction if spending else None,
    }


def _unmeasured_lines(spendings: Sequence[Spending]) -> list[str]:
    # Most machines have no counters. Only a user with a price asks for more than the load.
    reasons = dict.fromkeys(
        one.energy.reason for one in spendings if isinstance(one.energy, Unmeasured) and one.price is not None
    )
    return [f"Energy: not measured: {reason}" for reason in reasons]


def _cost_lines(spending: Spending) -> list[str]:
    price, cost = spending.price, spending.per_million_predictions
    if price is None:
        return []
    if cost is None:
        return [f"No cost: {NO_COST}"]
    rate = f"{three_digits(spending.predictions_per_s)} predictions/s"
    lines = [f"Cost: {_money(cost, spending)} per million predictions, at {rate} and {price}"]
    requests = spending.per_million_requests
    if requests is not None and spending.rows != 1:
        lines.append(f"Cost: {_money(requests, spending)} per million requests of {spending.rows:.3g} rows")
    work = three_significant(spending.work_per_price or 0.0)
    return [*lines, f"Work: {work} predictions/s per {price.currency}/h"]


def _energy_lines(spending: Spending) -> list[str]:
    energy, joules = spending.energy, spending.joules_per_prediction
    if not isinstance(energy, Energy):
        return []
    each = NO_COST if joules is None else f"{three_significant(joules)} J per prediction"
    parts = ", ".join(f"{kind} {three_digits(watts)} W" for kind, watts in energy.watts.items())
    whole = "whole machine with the load generator"
    return [f"Energy: {each}, at {three_digits(energy.total_watts)} W ({parts}; {whole})"]


def _columns(spendings: Sequence[Spending]) -> _Columns:
    """Return the columns with a figure of at least one load."""
    price = next((one.price for one in spendings if one.price is not None), None)
    found: _Columns = {"predictions/s": lambda one: three_digits(one.predictions_per_s)}
    if price is not None:
        currency = price.currency
        if len({one.price for one in spendings}) > 1:
            found[f"{currency}/h"] = lambda one: f"{one.price.per_hour:.10g}" if one.price else ""
        found[f"{currency} per million"] = lambda one: _amount(one.per_million_predictions)
        if any(one.rows != 1 for one in spendings):
            found[f"{currency} per million requests"] = lambda one: _amount(one.per_million_requests)
        found[f"predictions/s per {currency}/h"] = lambda one: _amount(one.work_per_price)
    kinds = dict.fromkeys(kind for one in spendings if isinstance(one.energy, Energy) for kind in one.energy.joules)
    found |= {f"{kind} W": _watts(kind) for kind in kinds}
    if kinds:
        found["J per prediction"] = lambda one: _amount(one.joules_per_prediction)
    return found if len(found) > 1 else {}


def _watts(kind: str) -> Callable[[Spending], str]:
    def cell(spending: Spending) -> str:
        energy = spending.energy
        return three_digits(energy.watts[kind]) if isinstance(energy, Energy) and kind in energy.joules else ""

    return cell


def _title(rows: Spendings) -> str:
    """Return the title, with the price if it is the same for all loads."""
    prices = {spending.price for _, spending in rows}
    return f"{TITLE} at {next(iter(prices))}" if len(prices) == 1 and None not in prices else TITLE


def _amount(value: float | None) -> str:
    return "" if value is None else three_significant(value)


def _money(value: float, spending: Spending) -> str:
    assert spending.price is not None  # a cost has one
    return f"{three_significant(value)} {spending.price.currency}"
