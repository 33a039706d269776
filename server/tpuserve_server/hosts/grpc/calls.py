"""CallContext of a call whose metadata grpcio has read: those of replicas of Ray Serve."""

import base64
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol, TypeAlias
from urllib.parse import unquote

from tpuserve_server.access.certificate import no_certificate
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.hosts.grpc.headers import Metadata, trace_headers_of
from tpuserve_server.observe.requests.request_id import REQUEST_ID_HEADER, echo_request_id
from tpuserve_server.observe.requests.trace_context import TRACEPARENT
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.rpc import CallContext, Trailers
from tpuserve_server.protocols.timing import TIMING_REQUEST_HEADER, wants_timing

_OWN_METADATA = frozenset((PRIORITY_HEADER, TIMING_REQUEST_HEADER, REQUEST_ID_HEADER, TRACEPARENT))

Pairs: TypeAlias = Iterable[tuple[str, str | bytes]]


class ServicerContext(Protocol):
    """The parts of grpcio's context of a call that are used here."""

    def invocation_metadata(self) -> Pairs | None:
        """Return the client's metadata, with decoded `-bin` values."""
        ...

    def peer(self) -> str:
        """Return the client's address in grpcio's form."""
        ...


def call_context(
    context: ServicerContext, deadline: Deadline, trailers: Trailers, started_s: float = 0.0
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


def _client(context: ServicerContext) -> str | None:
    client = client_of(context)
    return None if client is None else client[0]


def client_of(context: ServicerContext) -> tuple[str, int] | None:
    """Return the client's IP address and port, or None for a client of a UNIX socket.

    grpcio's forms are `ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5` and `unix:` (grpc/grpc, doc/naming.md).
    """
    kind, _, address = unquote(context.peer()).partition(":")
    if kind.startswith("unix"):
        return None
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _own_metadata(context: ServicerContext) -> dict[str, bytes]:
    """Return the metadata that is for the server itself, by key."""
    return {
        key: value.encode() if isinstance(value, str) else value
        for key, value in context.invocation_metadata() or ()
        if key in _OWN_METADATA
    }


def _raw_metadata(context: ServicerContext) -> Iterator[tuple[bytes, bytes]]:
    """Yield the raw metadata. A generator, so that unused metadata is never converted."""
    for key, value in context.invocation_metadata() or ():
        # grpcio has already decoded the base64 of `-bin` values.
        yield (
            key.encode(),
            base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode(),
        )
