"""TakenBatches: the batches that have left the queue, for all that predict or watch when they end."""

from collections.abc import Sequence

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.deadline_check import DeadlineCheck
from tpuserve_server.core.batching.hung_runs import HungRuns
from tpuserve_server.core.batching.running import RunningBatches
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.types import ServableId


class TakenBatches:
    """Passes on what happens to a batch after the queue. The batcher's lock guards it.

    A batch belongs to a device thread, by its number, even if the event loop runs it instead of the thread.
    """

    def __init__(
        self,
        servable_id: ServableId,
        running: RunningBatches,
        deadlines: DeadlineCheck,
        admission: Admission | None,
        hung: HungRuns,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """Record batches in `running`. Pass them to `deadlines`, to `admission` with an objective, and to `hung`."""
        self._id = servable_id
        self._clock = clock
        self._metrics = metrics
        self._running = running
        self._deadlines = deadlines
        self._admission = admission
        self._hung = hung

    def started(self, thread: int, tasks: Sequence[Task], now_s: float, run_s: float) -> None:
        """Record that a thread has taken a batch that should take `run_s`, after those that it has."""
        self._running.started(thread, tasks, now_s)
        self._deadlines.started(thread, now_s, run_s)
        if self._admission is not None:
            self._admission.started(thread, tasks, now_s)

    def dropped(self, thread: int, in_flight: int) -> None:
        """Record that a thread did not run the batch that it took last, and still has `in_flight`."""
        self._running.dropped(thread)
        if not in_flight:
            self._deadlines.ended(thread)
        if self._admission is not None:
            self._admission.dropped(thread)

    def ended(self, thread: int, in_flight: int) -> None:
        """Record that a thread has answered its oldest batch, and still has `in_flight`."""
        self._hung.ended(thread)
        if not in_flight:
            self._deadlines.ended(thread)
        if self._admission is not None:
            self._compare(self._admission, thread, in_flight)

    def _compare(self, admission: Admission, thread: int, in_flight: int) -> None:
        """Report the difference between the predicted and the actual finish of the batch."""
        signature_name, errors_s = admission.finished(thread, in_flight, self._clock.monotonic_s())
        if errors_s:
            host_s = admission.host_s(signature_name)
            self._metrics.finish_predicted(
                servable=self._id, signature=signature_name, errors_s=errors_s, host_s=host_s
            )
