"""DeadlineCheck: refuses a request at once if its predicted finish is after its deadline, without any objective."""

from tpuserve_server.core.batching.host_delay import HostDelay
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import DeadlineExceeded, ServingError, TooLate
from tpuserve_server.core.types import ServableId

# Smallest retry hint, in seconds.
_LEAST_RETRY_S = 0.001

# Part of a request's time that is left for the network and the client, up to this many seconds. The queue stays full
# without it, but a client on a busy machine would get the response late.
_MARGIN, _MOST_MARGIN_S = 0.2, 0.2


class DeadlineCheck:
    """Predicts when requests of one batcher finish. The batcher's lock guards it.

    Unknown costs count as 0, so that a server that has measured nothing refuses nothing.
    """

    def __init__(self, servable_id: ServableId, devices: int, host: HostDelay) -> None:
        """Predict for `devices` batches that run at the same time."""
        self._id = servable_id
        self._devices = devices
        self._host = host
        # Expected end of the last batch that each device thread has taken, or 0 if the thread has none.
        self._ends_s: dict[int, float] = {}
        # Earliest of them, 0 while a device thread is idle.
        self._free_s = 0.0

    @property
    def host_s(self) -> float:
        """Expected seconds from the end of a batch to its responses.

        It has no bound. After a pause of the host every request may seem late, but an idle device still runs batches,
        and they show within a few runs that the pause has ended.
        """
        return self._host.seconds

    def started(self, thread: int, now_s: float, run_s: float) -> None:
        """Record that a device thread has taken a batch that should run for `run_s`, after those that it has."""
        ends_s = self._ends_s
        ends_s[thread] = max(ends_s.get(thread, 0.0), now_s) + run_s
        self._free_s = min(ends_s.values()) if len(ends_s) == self._devices else 0.0

    def ended(self, thread: int) -> None:
        """Record that a device thread has no batch."""
        if thread in self._ends_s:
            self._ends_s[thread] = self._free_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether a device thread has no batch."""
        return not self._free_s

    def is_hopeless(self, deadline: Deadline, now_s: float, run_s: float) -> bool:
        """Return whether a request is answered after its deadline even if its batch of `run_s` starts now."""
        return deadline.at_s < now_s + run_s + self._host.seconds

    def finish_s(self, now_s: float, work_s: float, run_s: float) -> float:
        """Predict when a batch ends that takes `run_s` and runs after `work_s` of other batches.

        Both are seconds of one device.
        """
        # A batch that takes longer than expected should end any time.
        free_s = self._free_s
        return (free_s if free_s > now_s else now_s) + work_s / self._devices + run_s

    def refusal(self, deadline: Deadline, now_s: float, finish_s: float) -> TooLate:
        """Return the error for a request that would be answered at `finish_s`, after its deadline."""
        retry_s = max(finish_s - deadline.at_s, _LEAST_RETRY_S)
        return TooLate(
            f"Servable {self._id} would finish this request in {(finish_s - now_s) * 1000:.1f} ms, later than the "
            f"request's deadline in {deadline.remaining_s(now_s) * 1000:.1f} ms; retry in {retry_s * 1000:.0f} ms",
            retry_s,
        )

    def hopeless_error(self, deadline: Deadline, now_s: float) -> ServingError:
        """Return the error for a waiting request that cannot be answered by its deadline any more."""
        if deadline.expired(now_s):
            return DeadlineExceeded(f"Deadline exceeded while request for {self._id} was queued")
        return TooLate(
            f"Servable {self._id} cannot finish this request before its deadline in "
            f"{deadline.remaining_s(now_s) * 1000:.1f} ms; retry with a longer deadline",
            _LEAST_RETRY_S,
        )


def due_s(deadline: Deadline, now_s: float) -> float:
    """Return when a new request should be answered, so that its client gets the response by its deadline."""
    return deadline.at_s - min(_MARGIN * (deadline.at_s - now_s), _MOST_MARGIN_S)
