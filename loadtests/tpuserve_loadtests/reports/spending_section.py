"""Cost and energy of predictions: lines for a single load, and a table for several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tpuserve_loadtests.judgement.spending import NO_COST, Spending
from tpuserve_loadtests.monitoring.energy import Energy, Unmeasured
from tpuserve_loadtests.rendering.report import Printed, Remark, Row, Table, Text, Tile
from tpuserve_loadtests.rendering.scales import three_digits, three_significant

# Loads by name, in order.
Spendings: TypeAlias = Sequence[tuple[str, Spending]]

TITLE: Final = "Cost and energy"
_PREDICTION: Final = "A prediction is a row of a successful request."
_MACHINE: Final = (
    "The power is that of this whole machine, with the server, the load generator and all other processes."
)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table. `cell` returns an empty text for an unknown figure."""

    heading: str
    cell: Callable[[Spending], str]


def spending_section(kind: str, rows: Spendings) -> Table | Remark | None:
    """Return a row for each load, or only the reason why its energy is unknown. `kind` is the heading of the names."""
    columns = _columns([spending for _, spending in rows])
    reasons = unmeasured_lines([spending for _, spending in rows])
    if not columns:
        return Remark(reasons, TITLE) if reasons else None
    has_energy = any(isinstance(spending.energy, Energy) for _, spending in rows)
    notes = [_PREDICTION, *([_MACHINE] if has_energy else []), *reasons]
    return Table(_title(rows), _headings(kind, columns), _rows(rows, columns), " ".join(notes))


def printed_spendings(kind: str, rows: Spendings) -> list[Printed]:
    spendings = [spending for _, spending in rows]
    columns = _columns(spendings)
    table = Table(
        _title(rows),
        _headings(kind, columns),
        _rows(rows, columns) if columns else [],
        names="right",
        margins="fitting",
    )
    return [table, *(Text(f"  {line}") for line in unmeasured_lines(spendings))]


def spending_lines(spending: Spending) -> list[str]:
    return [*measured_spending_lines(spending), *unmeasured_lines([spending])]


def printed_spending(spending: Spending) -> list[Printed]:
    return [Text(f"  {line}", folds=True) for line in spending_lines(spending)]


def with_spending(statement: str, spending: Spending | None) -> str:
    return "\n".join([statement, *([] if spending is None else measured_spending_lines(spending))])


def measured_spending_lines(spending: Spending) -> list[str]:
    return [*_cost_lines(spending), *_energy_lines(spending)]


def spending_tiles(spending: Spending | None) -> list[Tile]:
    """Return the tile of the cost, if there is a price."""
    if spending is None or spending.price is None:
        return []
    cost = spending.per_million_predictions
    figure = "none" if cost is None else _money(cost, spending)
    return [Tile("cost per million predictions", figure, NO_COST if cost is None else f"at {spending.price}")]


def spending_cells(spending: Spending | None) -> dict[str, Any]:  # values of several types
    """Return the cells of a CSV row, by heading. Unknown figures are None."""
    return {
        "cost_per_million_predictions": spending.per_million_predictions if spending else None,
        "joules_per_prediction": spending.joules_per_prediction if spending else None,
    }


def unmeasured_lines(spendings: Sequence[Spending]) -> list[str]:
    reasons = dict.fromkeys(one.energy.reason for one in spendings if isinstance(one.energy, Unmeasured))
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


def _columns(spendings: Sequence[Spending]) -> list[_Column]:
    price = next((one.price for one in spendings if one.price is not None), None)
    found = [_Column("predictions/s", lambda one: three_digits(one.predictions_per_s))]
    if price is not None:
        currency = price.currency
        if len({one.price for one in spendings}) > 1:
            found.append(_Column(f"{currency}/h", lambda one: f"{one.price.per_hour:.10g}" if one.price else ""))
        found.append(_Column(f"{currency} per million", lambda one: _amount(one.per_million_predictions)))
        if any(one.rows != 1 for one in spendings):
            found.append(_Column(f"{currency} per million requests", lambda one: _amount(one.per_million_requests)))
        found.append(_Column(f"predictions/s per {currency}/h", lambda one: _amount(one.work_per_price)))
    kinds = dict.fromkeys(kind for one in spendings if isinstance(one.energy, Energy) for kind in one.energy.joules)
    found += [_watts_column(kind) for kind in kinds]
    if kinds:
        found.append(_Column("J per prediction", lambda one: _amount(one.joules_per_prediction)))
    return found if len(found) > 1 else []


def _watts_column(kind: str) -> _Column:
    def cell(spending: Spending) -> str:
        energy = spending.energy
        return three_digits(energy.watts[kind]) if isinstance(energy, Energy) and kind in energy.joules else ""

    return _Column(f"{kind} W", cell)


def _title(rows: Spendings) -> str:
    prices = {spending.price for _, spending in rows}
    return f"{TITLE} at {next(iter(prices))}" if len(prices) == 1 and None not in prices else TITLE


def _headings(kind: str, columns: Sequence[_Column]) -> list[str]:
    return [kind, *(column.heading for column in columns)]


def _rows(rows: Spendings, columns: Sequence[_Column]) -> list[Row]:
    return [Row(name, [column.cell(spending) or "-" for column in columns]) for name, spending in rows]


def _amount(value: float | None) -> str:
    return "" if value is None else three_significant(value)


def _money(value: float, spending: Spending) -> str:
    assert spending.price is not None  # a cost has one
    return f"{three_significant(value)} {spending.price.currency}"
