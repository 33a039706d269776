"""RunTimer: measures the run times of a version's batches at warm-up. Also checks latency objectives against them."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tpuserve_server.core.batching.cost_model import CostModel, MeasuredCost
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.sequences import Sequences
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, Tensors

# Maximum number of runs of one shape. They give a mean and a first spread, which live batches soon improve. The slowest
# of them is omitted, because other work has probably delayed it.
_MOST_RUNS = 5
# After these times a shape runs only once. A few runs of slow batches are enough, and a version with hundreds of shapes
# must become available.
_SHAPE_BUDGET_S = 0.25
_VERSION_BUDGET_S = 5.0


class RunTimer:
    """Timer that trains a cost model. For one thread.

    The times include delays by other work of the machine, and warm-up yields to requests of other versions. They are
    therefore too long rather than too short, until live batches correct them.
    """

    def __init__(self, costs: CostModel, clock: Clock) -> None:
        """Take the cost model to train."""
        self._costs = costs
        self._clock = clock
        self._left_s = _VERSION_BUDGET_S

    def time(self, run: Callable[[], object], signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> None:
        """Call `run` at least once and record its times. The caller has run it before, so it no longer compiles.

        Raises:
            ServingError: an error of `run`.
        """
        budget_s = min(_SHAPE_BUDGET_S, self._left_s)
        runs_s: list[float] = []
        while not runs_s or (len(runs_s) < _MOST_RUNS and sum(runs_s) < budget_s):
            started_s = self._clock.monotonic_s()
            run()
            runs_s.append(self._clock.monotonic_s() - started_s)
        self._left_s = max(self._left_s - sum(runs_s), 0.0)
        for run_s in sorted(runs_s)[: _MOST_RUNS - 1]:
            self._costs.learn(signature_name, rows, run_s, lengths)


def blank_rows(
    signature: Signature, rows: int, sequences: Sequences | None = None, lengths: Sequence[int] = ()
) -> Tensors:
    """Make `rows` rows of zeros and empty strings. Sequences are `lengths` long; other free dimensions are 1."""
    specs = signature.inputs
    inner = {
        name: tuple(1 if size is None else size for size in (spec.shape or ())[1:]) for name, spec in specs.items()
    }
    if sequences is not None:
        inner = sequences.row_shapes(inner, lengths)
    blank = {
        name: np.full((rows, *inner[name]), b"" if spec.dtype.hasobject else 0, spec.dtype)
        for name, spec in specs.items()
    }
    splits = [name for names in signature.ragged_inputs.values() for name in names]
    return blank | {name: np.arange(rows + 1, dtype=specs[name].dtype) for name in splits}


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
