"""Messages between a front-end process and the engine process: their kinds, and the form of each payload.

Both processes run the same installation: `Kind.HELLO` carries its version, and the engine refuses another one. Frequent
messages are encoded with `marshal`, which takes plain values only; rare ones with `pickle`. Only the processes of a
server hold its connections.
"""

import enum
from typing import Final, TypeAlias

from tpuserve_server.core import errors
from tpuserve_server.core.batching.batch_run import BatchRun, Departure
from tpuserve_server.core.errors import ServingError


class Kind(enum.IntEnum):
    """Kinds of messages. The numbers from 32 on belong to the tunnel and the measurements."""

    # From the front-end: the version of its installation, as text.
    HELLO = 1
    # From the engine: EngineState, pickled.
    STATE = 2
    # From the front-end: the key of a version on which its last request has ended, as text.
    RELEASED = 3
    # From the front-end: list of TaskGroup, and list of CancelMessage, marshalled.
    TASKS = 4
    CANCELS = 5
    # From the engine: lists of RunMessage, AnswerGroup and ErrorMessage, marshalled.
    ANSWERS = 6
    # From the front-end: list of (version key, signature, seconds) of responses, marshalled.
    LATENCIES = 7
    # From both: names, dtypes and shapes that later messages refer to by number, pickled; see array_coding.py.
    LAYOUT = 8
    # From both, about the segments of the sender: a new one, whose descriptor was passed before, and one that is gone.
    SEGMENT_NEW = 9
    SEGMENT_GONE = 10
    # From both, about the segments of the receiver: one on which all arrays are gone. The number, as text.
    SEGMENT_UNUSED = 11
    # From the front-end: it has adopted the EngineState with this number, as text.
    ADOPTED = 12
    # From the front-end: list of version keys, marshalled. The engine answers with their FinishForecasts, pickled.
    ASK_FORECASTS = 13
    FORECASTS = 14


# Arrays of several tasks with one layout: for each name the bytes of all tasks, or for each task the number of its
# segment, or for each task without a layout its pickled arrays.
Packed: TypeAlias = tuple[bytes, ...] | list[int] | list[bytes]

# Tasks that differ only in their numbers, deadlines and contents: key of the version, signature, outputs, rows of each
# task, whether it may share a batch, priority, layout, numbers, deadlines on the monotonic clock of the machine or None
# if no task has any, arrays.
TaskGroup: TypeAlias = tuple[int, str, tuple[str, ...], int, bool, int, int, list[int], list[float] | None, Packed]
# Number of the task, and `expired` or `cancelled`.
CancelMessage: TypeAlias = tuple[int, str]
# The fields of a BatchRun: departure, ready_s, requests, rows, bucket, started_s, begun_s, ended_s, failed, number.
RunMessage: TypeAlias = tuple[str, float, int, int, int, float, float, float, bool, int]
# Outputs of tasks from the same batches: positions of their runs, layout, numbers, when the engine queued them, arrays.
AnswerGroup: TypeAlias = tuple[tuple[int, ...], int, list[int], list[float], Packed]
# An error: positions of the runs, number of the task, when the engine queued it, class, message, seconds until a retry.
ErrorMessage: TypeAlias = tuple[tuple[int, ...], int, float, str, str, float | None]

# Message of the error of requests that the engine can no longer answer.
ENGINE_ENDED: Final = "The engine process of the server has ended"

_DEPARTURES: Final = {one.name: one for one in Departure}
_ERRORS: Final = {
    name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, ServingError)
}


def run_message(run: BatchRun) -> RunMessage:
    """Return a batch as a message."""
    return (
        run.departure.name,
        run.ready_s,
        run.requests,
        run.rows,
        run.bucket,
        run.started_s,
        run.begun_s,
        run.ended_s,
        run.failed,
        run.number,
    )


def read_run(message: RunMessage) -> BatchRun:
    """Return the batch of a message, with the engine's number."""
    departure, ready_s, *_ = message
    run = BatchRun(_DEPARTURES[departure], ready_s)
    _, _, run.requests, run.rows, run.bucket, run.started_s, run.begun_s, run.ended_s, run.failed, run.number = message
    return run


def read_error(name: str, message: str, retry_after_s: float | None) -> ServingError:
    """Return the error of an ErrorMessage."""
    kind = _ERRORS[name]
    if kind is errors.TooLate:
        assert retry_after_s is not None
        return errors.TooLate(message, retry_after_s)
    error = kind(message)
    error.retry_after_s = retry_after_s
    return error
