"""RequestRecord: everything known about one request that has ended. Watchers keep it, export it or log it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tpuserve_server.core.terms.batch_run import BatchRun, Departure, TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders

_MILLISECONDS: Final = 1e3
MOST_ERROR_CHARACTERS: Final = 200


class Stage(NamedTuple):
    """One stage: `decode`, for example, or `step2.queue` in a request that ran several times. `reason` may be empty.

    `started_s` is of `Clock.monotonic_s`.
    """

    name: str
    started_s: float
    duration_s: float
    reason: str = ""


class RequestRecord(NamedTuple):
    """One request. Times are those of `Clock.monotonic_s`, except `ended_unix_s`, which counts from 1970.

    `model` is empty if the request named no existing model. `version` is None and `signature` is empty if the server
    found none. The record holds no version in memory, and nothing that a client can make long.
    """

    protocol: str
    method: str
    model: str
    version: int | None
    signature: str
    code: Code
    started_s: float
    received_s: float
    ended_s: float
    ended_unix_s: float
    is_cached: bool
    times: tuple[TaskTimes, ...]
    # Empty: the request has no valid x-request-id.
    request_id: str = ""
    # Trace of the client, also if this server does not trace the request. Empty without a valid traceparent.
    client_trace_id: str = ""
    # None: the request is not traced.
    trace: TraceContext | None = None
    # The first characters of the message that a failed request got, up to `MOST_ERROR_CHARACTERS`. Clients can put any
    # text into it. Empty for a success, a cancelled task and an unexpected error, whose traceback is in the log.
    error: str = ""
    # Name of the identified client. Empty for an anonymous one.
    client: str = ""

    @property
    def latency_s(self) -> float:
        """Duration between the arrival and the response, without its transport."""
        return self.ended_s - self.started_s

    @property
    def stages(self) -> list[Stage]:
        """The stages of the request, in order, and their total."""
        return stages_of(self, self.ended_s)


class TimedRequest(Protocol):
    """The times of a request, in seconds of `Clock.monotonic_s`."""

    @property
    def started_s(self) -> float:
        """When the host or the front-end began to read the message."""
        ...

    @property
    def received_s(self) -> float:
        """When the message was complete."""
        ...

    @property
    def is_cached(self) -> bool:
        """Whether the response came from the cache."""
        ...

    @property
    def times(self) -> tuple[TaskTimes, ...]:
        """When the request passed through batchers: once, several times, or not at all."""
        ...


def stages_of(request: TimedRequest, now_s: float) -> list[Stage]:
    """Return the stages of a request up to `now_s`, in order.

    `receive` until the message was complete, `decode` until the request was
    queued, `queue` until its batch left, `batch` until the rows were joined and the device was free, `execute` on the
    device, `resume` until the event loop continued with the request, and `encode`. `total` is all of them. A request
    that has failed ends with the stage in which it failed.
    """
    times, started_s, received_s = request.times, request.started_s, request.received_s
    stages: list[Stage] = []
    if received_s > started_s:
        stages.append(Stage("receive", started_s, received_s - started_s))
    if request.is_cached:
        stages.append(Stage("cache", received_s, now_s - received_s, "the response cache had the response"))
    else:
        decoded_s = min((each.enqueued_s for each in times), default=now_s)
        stages.append(Stage("decode", received_s, decoded_s - received_s))
        for position, each in enumerate(times, start=1):
            stages += _passed(each, f"step{position}." if len(times) > 1 else "")
        if times:
            resumed_s = max(each.resumed_s for each in times)
            stages.append(Stage("encode", resumed_s, now_s - resumed_s))
    stages.append(Stage("total", started_s, now_s - started_s))
    return stages


def started_runs(times: TaskTimes) -> list[BatchRun]:
    """Return the batches that started before the request ended."""
    return [run for run in times.runs if 0.0 < run.started_s <= times.resumed_s]


def _passed(times: TaskTimes, prefix: str) -> list[Stage]:
    """Return the stages of one pass through a batcher. The parts of a request run one after the other or at once.

    The device threads may write later times while this function reads: the request has left its batch at its deadline.
    """
    resumed_s = times.resumed_s
    started = started_runs(times)
    if not started:
        waited_s = resumed_s - times.enqueued_s
        return [Stage(f"{prefix}queue", times.enqueued_s, waited_s, f"{_version(times)}: ended before it ran")]
    first = started[0]
    begun_s = min(first.begun_s, resumed_s)
    ended_s = max(min(run.ended_s or resumed_s, resumed_s) for run in started)
    enqueued_s, started_s = times.enqueued_s, first.started_s
    return [
        Stage(f"{prefix}queue", enqueued_s, started_s - enqueued_s, _why_queued(enqueued_s, first)),
        Stage(f"{prefix}batch", started_s, begun_s - started_s, _size(started)),
        Stage(f"{prefix}execute", begun_s, ended_s - begun_s, _version(times)),
        Stage(f"{prefix}resume", ended_s, resumed_s - ended_s),
    ]


def _why_queued(enqueued_s: float, run: BatchRun) -> str:
    """Return what the request waited for, as a phrase for people."""
    waited_s = run.started_s - enqueued_s
    for_rows_s = min(max(run.ready_s - enqueued_s, 0.0), waited_s)
    if run.departure is Departure.AT_ONCE or not for_rows_s:
        return f"{_ms(waited_s)} for the device"
    return f"{_ms(for_rows_s)} {run.departure.value} and {_ms(waited_s - for_rows_s)} for the device"


def _size(runs: Sequence[BatchRun]) -> str:
    """Return the batch of a request, for people. A request in parts was in several."""
    run = runs[-1]
    requests = f"{run.requests} request{'s' if run.requests > 1 else ''}"
    padding = f", {run.bucket - run.rows} of padding" if run.bucket > run.rows else ""
    size = f"batch {run.number} of {requests}: {run.bucket} row{'s' if run.bucket > 1 else ''}{padding}"
    return f"{size}; the last of {len(runs)} batches" if len(runs) > 1 else size


def _ms(duration_s: float) -> str:
    return f"{duration_s * _MILLISECONDS:.3f} ms"


def _version(times: TaskTimes) -> str:
    return f"{times.servable.name} version {times.servable.version}"


class RequestWatcher(Protocol):
    """Gets the requests that it wants, at their end. Runs on the event loop: cheap, never blocks, never raises."""

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        """Return whether to build the record of a request for `watch`. Called for every request."""
        ...

    def watch(self, record: RequestRecord) -> None:
        """Take the record of a request."""
        ...


class Tracing(Protocol):
    """Decides which requests are traced, and exports them. Runs on the event loop, like a watcher."""

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        """Return the identifiers of the span of a request that has ended, or None for one that is not traced."""
        ...

    def export(self, record: RequestRecord) -> None:
        """Export a request whose `trace` is set, later and on another thread."""
        ...


@dataclass(frozen=True, slots=True)
class Observers:
    """The parts that record requests at their end. `tracing` is None if the server traces no requests."""

    watchers: tuple[RequestWatcher, ...] = ()
    tracing: Tracing | None = None


NO_OBSERVERS = Observers()
