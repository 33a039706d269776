"""Check of latency objectives against the times that warm-up has measured."""

import math
from collections.abc import Mapping

from tpuserve_server.core.batching.cost_model import CostModel, MeasuredCost
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.terms.errors import InvalidArgument


def check_objectives(batching: Mapping[str, BatchingOptions], costs: CostModel) -> None:
    """Refuse latency objectives that no batch can meet. Signatures without warm-up are not checked.

    The fastest run decides. During live traffic, to which a load yields, the mean shows how busy the machine is. A
    check of the mean would refuse a new version whose objective the current version meets.

    Raises:
        InvalidArgument: no batch of a signature has run within its objective. The message gives one that would work.
    """
    for name, options in batching.items():
        cheapest = _cheapest(name, costs)
        if options.objective is not None and cheapest is not None:
            _check(name, options.objective.latency_s, cheapest)


def _cheapest(signature_name: str, costs: CostModel) -> MeasuredCost | None:
    measured = [cost for curve in costs.snapshot() if curve.signature_name == signature_name for cost in curve.costs]
    return min(measured, key=lambda cost: cost.fastest_s, default=None)


def _check(signature_name: str, objective_s: float, cheapest: MeasuredCost) -> None:
    if cheapest.fastest_s <= objective_s:
        return
    # A request that finds the device busy waits for one batch and runs in the next.
    enough_ms = math.ceil(2 * (cheapest.mean_s + cheapest.spread_s) * 1000)
    raise InvalidArgument(
        f"latency_objective_ms is {objective_s * 1000:g}, but the fastest batch of signature '{signature_name}', of "
        f"{cheapest.rows} row{'s' if cheapest.rows > 1 else ''}, takes {cheapest.mean_s * 1000:.3g} ms ± "
        f"{cheapest.spread_s * 1000:.2g} ms (fastest run: {cheapest.fastest_s * 1000:.3g} ms). "
        f"Set at least {enough_ms}, twice that time, or remove latency_objective_ms"
    )
