"""RunTimer: measures the run times of a version's batches at warm-up."""

from collections.abc import Callable

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.terms.deadline import Clock

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
