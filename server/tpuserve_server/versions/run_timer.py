"""RunTimer: how long a version's batches take, measured at warm-up."""

from collections.abc import Callable

from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.deadline import Clock

# Of one shape: enough for a mean, and for a spread that live batches soon make a better one. If there are so many, the
# slowest is left out: something else was going on.
_MOST_RUNS = 5
# After this long there is one run of a shape, and no more: of slow batches a few say enough, and a version that has
# hundreds of shapes is to serve at last.
_SHAPE_BUDGET_S = 0.25
_VERSION_BUDGET_S = 5.0


class RunTimer:
    """Teaches a cost model. Used by one thread.

    Times are what a run takes beside whatever else the machine does, and warm-up gives way to requests of other
    versions: they are rather too long than too short until live batches correct them.
    """

    def __init__(self, costs: CostModel, clock: Clock) -> None:
        """Teach `costs`."""
        self._costs = costs
        self._clock = clock
        self._left_s = _VERSION_BUDGET_S

    def time(self, run: Callable[[], object], signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> None:
        """Call `run`, which has been called before, so that nothing is compiled any more; at least once.

        Raises:
            ServingError: from `run`.
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
