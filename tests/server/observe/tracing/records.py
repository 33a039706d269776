"""Records of ended requests for tests."""

from tpuserve_server.core.terms.batch_run import BatchRun, Departure, TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceContext

SERVABLE = ServableId("digits", 7)
# 2026-01-01 in seconds since 1970, when the requests end.
ENDED_UNIX_S = 1767225600.0
ENDED_S = 20.0


def make_run(*, requests: int = 2, failed: bool = False) -> BatchRun:
    """Return a run from 13.5 s to 15.5 s, which left its queue at 13 s."""
    run = BatchRun(Departure.TIMEOUT, 12.0)
    run.requests, run.rows, run.bucket, run.failed = requests, 3, 4, failed
    run.started_s, run.begun_s, run.ended_s = 13.0, 13.5, 15.5
    return run


def make_record(
    trace: TraceContext | None, *runs: BatchRun, code: Code = Code.OK, more: tuple[TaskTimes, ...] = ()
) -> RequestRecord:
    """Return a request that began at 9 s, was complete 0.25 s later, was queued at 10 s and ended at 20 s."""
    times = (TaskTimes(SERVABLE, 10.0, runs, 16.0), *more) if runs else more
    return RequestRecord(
        protocol="grpc",
        method="Predict",
        model="digits",
        version=7,
        signature="serving_default",
        code=code,
        started_s=9.0,
        received_s=9.25,
        ended_s=ENDED_S,
        ended_unix_s=ENDED_UNIX_S,
        is_cached=False,
        times=times,
        request_id="abc",
        trace=trace,
    )


def make_trace(number: int, parent_id: str = "", state: str = "") -> TraceContext:
    """Return the identifiers of request `number`."""
    return TraceContext(f"{number:032x}", f"{number << 32:016x}", parent_id, state)
