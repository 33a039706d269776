"""The front-ends' edge: every request is counted and timed here, whatever the protocol."""

import asyncio
from types import TracebackType

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import Code, ServingError
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.service import HeldModel, HeldVersion, InferenceService

_NEVER = Deadline.never()
# Event loops may run a timer this much before its time: uvloop counts in whole milliseconds.
_TIMER_ERROR_S = 0.002


class Edge:
    """Measures the requests of one protocol (`grpc` or `rest`)."""

    def __init__(self, service: InferenceService, metrics: Metrics, clock: Clock, protocol: str) -> None:
        """`service` tells which models exist, so that names made up by clients never become metric labels."""
        self._service = service
        self._metrics = metrics
        self._clock = clock
        self._protocol = protocol

    def request(self, method: str, deadline: Deadline = _NEVER) -> "MeasuredRequest":
        """A context manager around one request; what leaves it as an exception is its code. Starts the clock now.

        A cancellation counts as DEADLINE_EXCEEDED from `deadline` on: hosts cancel what has missed its deadline.
        """
        return MeasuredRequest(self, method, deadline, self._clock.monotonic_s())

    def finished(self, request: "MeasuredRequest", error: BaseException | None) -> None:
        """Report one request. A model's name is reported when the request succeeded or the model exists."""
        now_s = self._clock.monotonic_s()
        model = request.model
        if error is not None and model and model not in self._service.models():
            model = ""
        self._metrics.request_finished(
            model=model,
            version=request.version,
            signature=request.signature,
            method=request.method,
            protocol=self._protocol,
            code=_code(error, request.deadline, now_s),
            latency_s=now_s - request.started_s,
        )
        if error is None and request.promise is not None:
            request.promise.answered(request.signature, now_s - request.came_s)
        if request.examples:
            self._metrics.examples_received(model=model, count=request.examples)


class MeasuredRequest:
    """One request under way. Whoever learns its method, model, number of tf.Examples and what it `runs` says so."""

    __slots__ = (
        "_edge", "came_s", "deadline", "examples", "method", "model", "promise", "signature", "started_s", "version",
    )  # fmt: skip

    def __init__(self, edge: Edge, method: str, deadline: Deadline, started_s: float) -> None:
        """See `Edge.request`."""
        self._edge = edge
        self.method = method
        self.model = ""
        self.version: int | None = None
        self.signature = ""
        self.examples = 0
        self.deadline = deadline
        self.started_s = started_s
        # When all of it was there: a client may take its time to send.
        self.came_s = started_s
        self.promise: HeldModel | HeldVersion | None = None

    def __enter__(self) -> "MeasuredRequest":
        """The request itself."""
        return self

    def runs(self, held: HeldModel | HeldVersion, signature: str = "", priority: Priority = Priority.HIGH) -> None:
        """The version and signature that the request resolved to, which are measured apart; none for several.

        Of high priority its answer may be due within a latency objective, which one signature has.
        """
        self.version = held.servable_id.version
        self.signature = signature
        if priority is Priority.HIGH and held.promises(signature):
            self.promise = held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The request is over; its exception, if any, goes on."""
        self._edge.finished(self, error)


def _code(error: BaseException | None, deadline: Deadline, now_s: float) -> Code:
    if error is None:
        return Code.OK
    if isinstance(error, ServingError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return Code.DEADLINE_EXCEEDED if deadline.expired(now_s + _TIMER_ERROR_S) else Code.CANCELLED
    return Code.INTERNAL
