"""RequestRecord: everything known about one request that has ended. Watchers keep it, export it or log it."""

from typing import Final, NamedTuple

from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.stages import Stage, stages_of
from tpuserve_server.observe.requests.trace_context import TraceContext

MOST_ERROR_CHARACTERS: Final = 200


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
