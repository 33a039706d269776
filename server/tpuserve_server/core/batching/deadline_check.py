"""DeadlineCheck: refuses a request at once if its predicted finish is after its deadline, without any objective."""

from tpuserve_server.core.batching.device_queue import DeviceQueue
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, ServingError, TooLate
from tpuserve_server.core.terms.types import ServableId

# Weights and factor of TCP's retransmission timer (RFC 6298, 2.3): smoothed mean plus four mean deviations.
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4.0


class HostDelay:
    """Seconds to expect between the end of a batch and the last of its responses.

    Event loops record, and any thread reads. Both without a lock: a lost update is harmless.
    """

    __slots__ = ("_deviation_s", "_mean_s", "seconds")

    def __init__(self) -> None:
        """Start with no delay."""
        self._mean_s = self._deviation_s = 0.0
        self.seconds = 0.0

    def record(self, delay_s: float) -> None:
        """Record that the responses of a batch went out `delay_s` after it had ended."""
        off_s = delay_s - self._mean_s
        self._mean_s += _MEAN_WEIGHT * off_s
        self._deviation_s += _DEVIATION_WEIGHT * (abs(off_s) - self._deviation_s)
        self.seconds = self._mean_s + _DEVIATIONS * self._deviation_s


# Smallest retry hint, in seconds.
_LEAST_RETRY_S = 0.001

# Part of a request's time that is left for the network and the client, up to this many seconds. The queue stays full
# without it, but a client on a busy machine would get the response late.
_MARGIN, _MOST_MARGIN_S = 0.2, 0.2


class DeadlineCheck:
    """The check of requests without an objective against their deadlines. The batcher's lock guards it.

    Unknown costs count as 0, so that a server that has measured nothing refuses nothing.
    """

    def __init__(self, servable_id: ServableId, device: DeviceQueue, host: HostDelay) -> None:
        """Predict for the batches behind those of `device`."""
        self._id = servable_id
        self.device = device
        self._host = host

    @property
    def host_s(self) -> float:
        """Expected seconds from the end of a batch to its responses.

        It has no bound. After a pause of the host every request may seem late, but an idle device still runs batches,
        and they show within a few runs that the pause has ended.
        """
        return self._host.seconds

    def earliest_s(self, now_s: float, run_s: float) -> float:
        """Predict when the requests of a batch of `run_s` are answered if it is the next."""
        return self.device.free_s(now_s) + run_s + self._host.seconds

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
