"""One HTTP exchange of any REST protocol: body, encodings, deadline, priority, client disconnects and all errors.

A protocol adds its paths, its messages and its errors, and a line in the table of rest.py. An exchange has no router
and no middleware: a FastAPI endpoint takes more than twice as long as an entire prediction (see python -m benchmarks
codecs).
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from tpuserve_server.access.access import ANY_ROLE, Access
from tpuserve_server.core.batching.task import Outcome, Waiter
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.system.byte_parts import ByteParts
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Body
from tpuserve_server.observe.requests.trace_context import echo_request_id
from tpuserve_server.protocols.http.content import MIN_COMPRESSED_BYTES, decompress, rest_of_body
from tpuserve_server.protocols.http.headers import (
    RequestHeaders,
    find_length,
    find_request_id,
    read_headers,
    read_observed,
)
from tpuserve_server.protocols.http.response import (
    NO_STORE,
    Headers,
    HttpResponse,
    compressed,
    error_response,
    response_messages,
)
from tpuserve_server.protocols.interruption import Interruptible, Interruption, Interruptions
from tpuserve_server.protocols.options import ExchangeOptions
from tpuserve_server.protocols.request_meter import MeasuredRequest, RequestMeter
from tpuserve_server.protocols.rpc import Trailers
from tpuserve_server.protocols.status import BodyTooLarge, ClientGone, log_internal

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


class HttpCall:
    """One request in flight, as a protocol sees it.

    `read_body` sets `deadline` and `priority`. Without a body, the request has no deadline.
    """

    __slots__ = ("_exchange", "_receive", "deadline", "measured", "priority", "scope")

    priority: Priority

    def __init__(self, exchange: "Exchange", scope: "Scope", receive: "Receive", measured: MeasuredRequest) -> None:
        """Store the arguments; `read_body` reads the request."""
        self._exchange = exchange
        self._receive = receive
        self.scope = scope
        # The protocol records the method, model, version and signature here.
        self.measured = measured
        self.deadline = Deadline.never()

    def read_observed(self) -> None:
        """Read the headers of a request without a body that ask for timing or a trace.

        Raises:
            InvalidArgument: the wish for timing is invalid.
        """
        self.measured.wants_timing, self.measured.trace_headers = read_observed(self.scope)

    async def read_body(self) -> bytes:
        """Read the headers and the whole body. Raises ServingError as `read_aligned`."""
        return bytes(await self.read_aligned(None))

    async def read_aligned(self, find_contents: Callable[["Scope"], int | None] | None) -> Body:
        """Read the headers and the whole body, and decompress it. Read at most one chunk beyond the limit.

        `find_contents` finds in the headers where a large tensor begins in the body, so that its contents are aligned.

        Raises:
            ClientGone: the client disconnected.
            BodyTooLarge: the declared, the compressed or the decompressed size is over the limit.
            UnsupportedEncoding: the body has an encoding other than gzip and deflate.
            InvalidArgument: the compressed data is corrupt, or a header has an invalid timeout or priority.
            ResourceExhausted: the body does not fit the budget of unfinished requests.
        """
        exchange, receive = self._exchange, self._receive
        limit_bytes = exchange.options.max_body_bytes
        headers = read_headers(self.scope, limit_bytes)
        self._observe(headers)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: Body = message.get("body", b"")
            if len(body) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
        else:
            with exchange.receiving.begin(self.scope.get("client")) as upload:
                parts = None
                if find_contents is not None and headers.coding is None:
                    start = find_contents(self.scope)
                    parts = ByteParts(find_length(self.scope), lambda _head: start)
                body = await rest_of_body(message, receive, limit_bytes, upload, parts)
        if headers.coding is not None:
            body = await decompress(body, headers.coding, limit_bytes)
        self._arrived(headers)
        return body

    def take_body(self, message: "Message") -> bytes | None:
        """Read the headers, and return the body if `message` has all of it. Else return None, for `read_body`.

        Raises:
            ServingError: `read_body` raises it, too.
        """
        limit_bytes = self._exchange.options.max_body_bytes
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        headers = read_headers(self.scope, limit_bytes)
        body: bytes = message.get("body", b"")
        if headers.coding is not None or len(body) > limit_bytes:
            return None
        self._observe(headers)
        self._arrived(headers)
        return body

    def _observe(self, headers: RequestHeaders) -> None:
        measured = self.measured
        measured.wants_timing = headers.wants_timing
        measured.trace_headers = headers.trace
        if headers.request_id is not None and measured.request_id is None and measured.trailers is not None:
            measured.request_id = headers.request_id
            echo_request_id(headers.request_id, measured.trailers)

    def _arrived(self, headers: RequestHeaders) -> None:
        """Note that the whole request has arrived."""
        exchange, measured = self._exchange, self.measured
        measured.received_s = now_s = exchange.clock.monotonic_s()
        measured.timeout_s = headers.timeout_s
        # The earlier of two: the server's timeout counts from now, the client's from the arrival of the request.
        client_s = measured.started_s + headers.timeout_s
        server_s = now_s + exchange.options.timeout_s
        self.deadline = Deadline(client_s if client_s < server_s else server_s)
        self.priority = headers.priority

    def watch_client(self, task: Interruptible | None = None) -> Interruption:
        """Return a context manager that cancels the wait for a result, as ClientGone, when the client disconnects.

        `task` waits for it, or the current one. Call it only after the body has been read.
        """
        return Interruption(self._exchange.interruptions, self._receive, task)


class RouteFacts(NamedTuple):
    """The facts that the guard knows of a REST request from its method and path.

    `access` is what the request needs of its client, and `method` its name in metrics.

    `model` is None if the path names none; the body may still name one. A browser opens a page (`is_page`), so that it
    must ask for a password.
    """

    access: Access
    method: str
    model: str | None = None
    is_page: bool = False


# The name in metrics is that of the request meter.
UNKNOWN_ROUTE: Final = RouteFacts(ANY_ROLE, "Unknown")


class RestLaneCall(Protocol):
    """A request that a lane has taken. One of its methods is called, once, and the request then has ended."""

    @property
    def is_ready(self) -> bool:
        """Whether `end` may be called at once, with any outcome. The waiter then gets none."""
        ...

    def end(self, outcome: Outcome) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Report a success and return the response, or a coroutine that encodes a large one.

        Raises:
            ServingError: the request has failed, and is not reported.
        """
        ...

    def give_up(self) -> None:
        """Free the place in the queue of a request that gets no outcome, and is not reported."""
        ...


class RestProtocol(Protocol):
    """The parts of an exchange that a protocol defines."""

    def answer(self, call: HttpCall) -> Awaitable[HttpResponse]:
        """Answer a request. Raises ServingError, when called or when awaited.

        A plain function that returns a coroutine saves a frame.
        """
        ...

    def begin(self, call: HttpCall, body: bytes, waiter: Waiter) -> RestLaneCall | None:
        """Queue a request whose outcome `waiter` gets, or return None before any effect, for `answer`.

        Raises:
            ServingError: the request has failed.
        """
        ...

    def error_body(self, message: str) -> bytes:
        """Return an error as JSON in the protocol's form."""
        ...

    def facts_of(self, method: str, path: bytes) -> RouteFacts:
        """Return the facts about a request from its undecoded path. UNKNOWN_ROUTE for an invalid path."""
        ...


class Exchange:
    """ASGI application of one protocol. It turns every error into a response and raises nothing."""

    def __init__(
        self,
        protocol: RestProtocol,
        meter: RequestMeter,
        clock: Clock,
        options: ExchangeOptions,
        receiving: ReceivingBudget,
    ) -> None:
        """Answer requests with `protocol`; `meter` measures them, and `receiving` is charged as they arrive."""
        self.receiving = receiving
        self.protocol = protocol
        self.options = options
        self.clock = clock
        self.interruptions = Interruptions()
        self._meter = meter

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one HTTP request."""
        protocol = self.protocol
        measured = self._meter.request("Unknown")
        trailers: Trailers = []
        measured.trailers = trailers
        has_body = scope["method"] != "GET"
        if not has_body:
            measured.request_id = find_request_id(scope)
            echo_request_id(measured.request_id, trailers)
        try:
            with measured:
                call = HttpCall(self, scope, receive, measured)
                if not has_body:
                    call.read_observed()
                response = await protocol.answer(call)
        except ClientGone:
            return
        except Exception as error:  # The edge: the client gets a response to every error.
            if isinstance(error, BodyTooLarge):
                self.receiving.oversized += 1
            response = failure_response(error, scope, protocol.error_body, trailers)
        if needs_compression(response):
            response = await compressed(response, scope)
        # Both sends here, because a coroutine for them would cost each request a frame.
        start, body = self.messages(response, scope, measured, has_body=has_body)
        await send(start)
        await send(body)

    def messages(
        self, response: HttpResponse, scope: "Scope", measured: MeasuredRequest, *, has_body: bool = True
    ) -> "tuple[Message, Message]":
        """Return a response as ASGI messages, with the headers that every exchange adds. `has_body`: of the request."""
        trailers = measured.trailers
        assert trailers is not None, "every exchange sets them"
        if measured.request_id is None and response.status >= 400:
            # The request may have failed before its headers were read.
            echo_request_id(find_request_id(scope), trailers)
        more_headers: Headers = () if has_body else (NO_STORE,)
        if trailers:
            more_headers = (*more_headers, *encoded(trailers))
        return response_messages(response, more_headers)

    def begin(self, scope: "Scope", message: "Message", receive: "Receive", waiter: Waiter) -> "ExchangeCall | None":
        """Begin a request with a body without a task, or return None before any effect, for `__call__`.

        `waiter` gets the outcome, unless the request `is_ready`. `message` is the first of the request. `receive` waits
        for the departure of the client.
        """
        measured = self._meter.request("Unknown")
        measured.trailers = []
        call = ExchangeCall(self, scope, receive, measured)
        try:
            body = call.take_body(message)
        except Exception:  # `__call__` reports it.
            return None
        if body is None:
            return None
        try:
            lane_call = self.protocol.begin(call, body, waiter)
        except Exception as error:  # The edge, as above.
            return call.begin(error)
        return None if lane_call is None else call.begin(lane_call)


class ExchangeCall(HttpCall):
    """A request that needs no task. One of `end` and `give_up` is called, once. One event loop's thread owns it."""

    __slots__ = ("_begun",)

    _begun: RestLaneCall | Exception

    def begin(self, begun: RestLaneCall | Exception) -> "ExchangeCall":
        """Own what a lane has begun, or its error. The request counts as in flight until it ends."""
        self._begun = begun
        self.measured.__enter__()
        return self

    @property
    def is_ready(self) -> bool:
        """Whether `end` may be called at once, with any outcome. The waiter then gets none."""
        return isinstance(self._begun, Exception) or self._begun.is_ready

    def end(self, outcome: Outcome) -> "tuple[Message, Message] | Coroutine[Any, Any, tuple[Message, Message]]":
        """Report the request, and return its response, or a coroutine that encodes a large one. Raises nothing."""
        try:
            if isinstance(self._begun, Exception):
                raise self._begun
            response = self._begun.end(outcome)
        except Exception as error:  # The edge, as above.
            return self._fail(error)
        if not isinstance(response, HttpResponse) or needs_compression(response):
            return self._end_slowly(response)
        return self._exchange.messages(response, self.scope, self.measured)

    async def _end_slowly(self, coming: HttpResponse | Coroutine[Any, Any, HttpResponse]) -> "tuple[Message, Message]":
        scope, measured = self.scope, self.measured
        try:
            response = coming if isinstance(coming, HttpResponse) else await coming
        except Exception as error:  # The edge, as above.
            return self._fail(error)
        except BaseException as error:
            measured.__exit__(type(error), error, None)
            raise
        if needs_compression(response):
            response = await compressed(response, scope)
        return self._exchange.messages(response, scope, measured)

    def give_up(self, error: BaseException) -> None:
        """Report that `error` has ended the request before its outcome. Frees its place in the queue."""
        if not isinstance(self._begun, Exception):
            self._begun.give_up()
        self.measured.__exit__(type(error), error, None)

    def _fail(self, error: Exception) -> "tuple[Message, Message]":
        scope, measured = self.scope, self.measured
        measured.__exit__(type(error), error, None)
        response = failure_response(error, scope, self._exchange.protocol.error_body, measured.trailers or [])
        return self._exchange.messages(response, scope, measured)


def needs_compression(response: HttpResponse) -> bool:
    """Return whether `compressed` must see a response."""
    return response.compressible and len(response.body) >= MIN_COMPRESSED_BYTES


def failure_response(
    error: Exception, scope: "Scope", error_body: Callable[[str], bytes], trailers: Trailers
) -> HttpResponse:
    """Return the response to an error that a protocol raised. An internal error gets a request id among `trailers`.

    Any error except a ServingError is a bug in the server: log it and hide it from the client.
    """
    if isinstance(error, ServingError):
        if error.code is Code.INTERNAL:
            log_internal(error, f"{scope['method']} {scope['path']}", trailers)
        return error_response(error, error_body(error.message))
    log_internal(error, f"{scope['method']} {scope['path']}", trailers)
    return HttpResponse(500, error_body("Internal error"), compressible=False)


def encoded(trailers: Trailers) -> Headers:
    """Return the headers that the meter and the exchange add to a response."""
    return tuple((name.encode(), value.encode()) for name, value in trailers)


def raw_path(scope: "Scope") -> bytes:
    """Return the path as the client sent it, without the query.

    Some ASGI servers do not provide `raw_path`. A slash within a model name then reads as a path separator.
    """
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"], safe="/:").encode() if raw is None else raw.partition(b"?")[0]
