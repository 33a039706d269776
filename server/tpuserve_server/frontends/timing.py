"""The stages of one request, each with its duration and an explanation, and their form as a `server-timing` header."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tpuserve_server.core.batching.batch_run import BatchRun, Departure
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.task_times import TaskTimes

# A client sends this with the value 1 to get the other one. gRPC sends it as metadata and gets a trailer.
TIMING_REQUEST_HEADER: Final = "x-tpuserve-timing"
SERVER_TIMING_HEADER: Final = "server-timing"

_MILLISECONDS: Final = 1e3
_MOST_SHOWN: Final = 32
_SEPARATOR: Final = ", "
# gRPC clients may refuse trailers of more than 8 KiB, and an ensemble may have 256 steps.
MAX_VALUE_BYTES: Final = 4096


class Stage(NamedTuple):
    """One stage: `decode`, for example, or `step2.queue` in a request that ran several times. `reason` may be empty."""

    name: str
    duration_s: float
    reason: str = ""


class TimedRequest(Protocol):
    """The times of a request, in seconds of `Clock.monotonic_s`."""

    @property
    def lag_s(self) -> float:
        """Duration between the arrival at Envoy and `started_s`; 0 without Envoy."""
        ...

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


def wants_timing(value: bytes | None) -> bool:
    """Return whether the value of TIMING_REQUEST_HEADER asks for the stages; None if the client sent none.

    Raises:
        InvalidArgument: the value is neither 0 nor 1.
    """
    if value is None or value == b"0":
        return False
    if value == b"1":
        return True
    raise InvalidArgument(f"{TIMING_REQUEST_HEADER} must be 0 or 1; was {value[:_MOST_SHOWN].decode('latin-1')!r}")


def stages_of(request: TimedRequest, now_s: float) -> list[Stage]:
    """Return the stages of a request up to `now_s`, in order.

    `host` from Envoy to the application, `receive` until the message was complete, `decode` until the request was
    queued, `queue` until its batch left, `batch` until the rows were joined and the device was free, `execute` on the
    device, `resume` until the event loop continued with the request, and `encode`. `total` is all of them. A request
    that has failed ends with the stage in which it failed.
    """
    times = request.times
    stages: list[Stage] = []
    if request.lag_s > 0.0:
        stages.append(Stage("host", request.lag_s, "between Envoy and the application"))
    if request.received_s > request.started_s:
        stages.append(Stage("receive", request.received_s - request.started_s))
    if request.is_cached:
        stages.append(Stage("cache", now_s - request.received_s, "the response cache had the response"))
    else:
        decoded_s = min((each.enqueued_s for each in times), default=now_s)
        stages.append(Stage("decode", decoded_s - request.received_s))
        for position, each in enumerate(times, start=1):
            stages += _passed(each, f"step{position}." if len(times) > 1 else "")
        if times:
            stages.append(Stage("encode", now_s - max(each.resumed_s for each in times)))
    stages.append(Stage("total", request.lag_s + now_s - request.started_s))
    return stages


def server_timing(stages: Sequence[Stage]) -> str:
    """Return the value of a `server-timing` header, in milliseconds (https://www.w3.org/TR/server-timing/).

    Stages that do not fit into MAX_VALUE_BYTES are omitted, except the last one, which is the total.
    """
    *entries, total = map(_entry, stages)
    room = MAX_VALUE_BYTES - len(total)
    kept: list[str] = []
    for entry in entries:
        room -= len(entry) + len(_SEPARATOR)
        if room < 0:
            break
        kept.append(entry)
    return _SEPARATOR.join((*kept, total))


def _entry(stage: Stage) -> str:
    description = f";desc={_quoted(stage.reason)}" if stage.reason else ""
    return f"{stage.name};dur={stage.duration_s * _MILLISECONDS:.3f}{description}"


def _passed(times: TaskTimes, prefix: str) -> list[Stage]:
    """Return the stages of one pass through a batcher. The parts of a request run one after the other or at once.

    The device threads may write later times while this function reads: the request has left its batch at its deadline.
    """
    resumed_s = times.resumed_s
    started = [run for run in times.runs if 0.0 < run.started_s <= resumed_s]
    if not started:
        waited_s = resumed_s - times.enqueued_s
        return [Stage(f"{prefix}queue", waited_s, f"{_version(times)}: ended before it ran")]
    first = started[0]
    begun_s = min(first.begun_s, resumed_s)
    ended_s = max(min(run.ended_s or resumed_s, resumed_s) for run in started)
    return [
        Stage(f"{prefix}queue", first.started_s - times.enqueued_s, _why_queued(times.enqueued_s, first)),
        Stage(f"{prefix}batch", begun_s - first.started_s, _size(started)),
        Stage(f"{prefix}execute", ended_s - begun_s, _version(times)),
        Stage(f"{prefix}resume", resumed_s - ended_s),
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


def _quoted(text: str) -> str:
    """Return a quoted-string (RFC 9110, 5.6.4) in ASCII. Model names may have any character."""
    plain = "".join(each if " " <= each <= "~" else "?" for each in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _version(times: TaskTimes) -> str:
    return f"{times.servable.name} version {times.servable.version}"
