"""gRPC calls of a replica: from Ray's context and the request's bytes to Ray's status and the response's bytes."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeAlias
from urllib.parse import unquote

import grpc

from tpuserve_server.access.credentials import no_certificate
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Code, TooLarge
from tpuserve_server.hosts.grpc_headers import deadline_of, trace_headers_of
from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.hosts.grpc_status import PUSHBACK, RpcFailure, failure_of
from tpuserve_server.hosts.ray.ingress import TIMEOUT
from tpuserve_server.observe.requests.trace_context import REQUEST_ID_HEADER, TRACEPARENT, echo_request_id
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.rpc import CallContext, GuardedStream, GuardedTable, GuardedUnary, Trailers
from tpuserve_server.protocols.timing import TIMING_REQUEST_HEADER, wants_timing

_OWN_METADATA = frozenset((PRIORITY_HEADER, TIMING_REQUEST_HEADER, REQUEST_ID_HEADER, TRACEPARENT))
_STATUS = {Code(status.value[0]): status for status in grpc.StatusCode}

Pairs: TypeAlias = Iterable[tuple[str, str | bytes]]


class ReplicaContext(Protocol):
    """The parts of Ray's RayServegRPCContext that are used here."""

    def invocation_metadata(self) -> Pairs | None:
        """Return the client's metadata, with decoded `-bin` values."""
        ...

    def peer(self) -> str:
        """Return the client's address in grpcio's form."""
        ...

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status of the response."""
        ...

    def set_details(self, details: str) -> None:
        """Set the message of the status."""
        ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        """Set the trailing metadata, in addition to Ray's."""
        ...


class Serialized(Protocol):
    """A message of protocol buffers. The servicer functions of other projects parse requests into one."""

    def SerializeToString(self) -> bytes:
        """Return the message on the wire."""
        ...


class Response:
    """Bytes of a response. Ray serializes responses itself."""

    __slots__ = ("_message",)

    def __init__(self, message: bytes) -> None:
        self._message = message

    def SerializeToString(self) -> bytes:
        """Return the bytes."""
        return self._message


class ReplicaCalls:
    """Calls of the methods of `rpc`. One event loop's thread owns it."""

    def __init__(self, rpc: GuardedTable, receiving: ReceivingBudget, max_message_bytes: int, clock: Clock) -> None:
        """Refuse messages above `max_message_bytes`, and count them in `receiving`."""
        self._rpc = rpc
        self._receiving = receiving
        self._max_message_bytes = max_message_bytes
        self._clock = clock

    async def unary(self, path: str, request: bytes | Serialized, context: ReplicaContext) -> Response:
        """Answer one request. A status other than OK is set on `context`, and its response is empty.

        Ray drops the trailing metadata of calls that raise, and with it the retry hint.
        """
        method = self._rpc[path]
        assert isinstance(method, GuardedUnary), path
        started_s = self._clock.monotonic_s()
        trailers: Trailers = []
        try:
            call = _call_context(context, self._deadline(context), trailers, started_s)
            # Ray's proxy has read the message. The checks of its size and content still follow the admission.
            handle = await method.admit(call)
            response = await handle(self._checked(request), call)
        except Exception as error:  # A front-end's edge: the client gets a status for every error.
            _fail(context, failure_of(error, path, trailers), trailers)
            return Response(b"")
        _send_trailers(context, trailers)
        return Response(response)

    async def stream(
        self, path: str, requests: AsyncIterator[bytes | Serialized], context: ReplicaContext
    ) -> AsyncIterator[Response]:
        """Answer a stream of requests with a stream of responses."""
        method = self._rpc[path]
        assert isinstance(method, GuardedStream), path
        trailers: Trailers = []
        bodies = (self._checked(request) async for request in requests)
        messages: AsyncIterator[bytes] | None = None
        try:
            call = _call_context(context, self._deadline(context), trailers)
            messages = (await method.admit(call))(bodies, call)
            async for message in messages:
                yield Response(message)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # The same edge, for streams.
            _fail(context, failure_of(error, path, trailers), trailers)
            # Ray passes the status on with a message only; for a status other than OK, grpcio ignores it.
            yield Response(b"")
        finally:
            if (close := getattr(messages, "aclose", None)) is not None:
                await close()

    def _checked(self, request: bytes | Serialized) -> bytes:
        body = request if isinstance(request, bytes) else request.SerializeToString()
        if len(body) > self._max_message_bytes:
            self._receiving.oversized += 1
            raise TooLarge(f"Received message larger than max ({len(body)} vs. {self._max_message_bytes})")
        return body

    def _deadline(self, context: ReplicaContext) -> Deadline:
        # None with servicer functions of other projects: they pass no deadline on.
        timeout = next((value for key, value in context.invocation_metadata() or () if key == TIMEOUT), None)
        return deadline_of(timeout.encode() if isinstance(timeout, str) else timeout, self._clock)


def _fail(context: ReplicaContext, failure: RpcFailure, trailers: Trailers) -> None:
    context.set_code(_STATUS[failure.code])
    context.set_details(failure.message)
    if failure.pushback_ms is not None:
        trailers.append((PUSHBACK, str(failure.pushback_ms)))
    _send_trailers(context, trailers)


def _send_trailers(context: ReplicaContext, trailers: Trailers) -> None:
    if trailers:
        context.set_trailing_metadata(trailers)


def _call_context(
    context: ReplicaContext, deadline: Deadline, trailers: Trailers, started_s: float = 0.0
) -> CallContext:
    """Return the context of a unary call that began at `started_s`, or of a stream."""
    own = _own_metadata(context)
    request_id = own.get(REQUEST_ID_HEADER)
    if request_id is not None:
        echo_request_id(request_id, trailers)
    return CallContext(
        deadline,
        Metadata(_raw_metadata(context)),
        own.get(PRIORITY_HEADER),
        partial(_client, context),
        started_s,
        trailers if started_s else None,
        wants_timing(own.get(TIMING_REQUEST_HEADER)),
        trace_headers_of(_raw_metadata(context)) if TRACEPARENT in own else None,
        request_id,
        no_certificate,
    )


def _client(context: ReplicaContext) -> str | None:
    """Return the client's IP address, or None for a client of a UNIX socket.

    grpcio's forms are `ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5` and `unix:` (grpc/grpc, doc/naming.md).
    """
    kind, _, address = unquote(context.peer()).partition(":")
    return None if kind.startswith("unix") else address.rpartition(":")[0].strip("[]")


def _own_metadata(context: ReplicaContext) -> dict[str, bytes]:
    """Return the metadata that is for the server itself, by key."""
    return {
        key: value.encode() if isinstance(value, str) else value
        for key, value in context.invocation_metadata() or ()
        if key in _OWN_METADATA
    }


def _raw_metadata(context: ReplicaContext) -> Iterator[tuple[bytes, bytes]]:
    """Yield the raw metadata. A generator, so that unused metadata is never converted."""
    for key, value in context.invocation_metadata() or ():
        # grpcio has already decoded the base64 of `-bin` values.
        yield (
            key.encode(),
            base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode(),
        )
