"""OTLP's messages, written by hand (opentelemetry-proto, trace/v1/trace.proto): bytes of fields and of whole messages.

OpenTelemetry's SDK takes 25 microseconds for a span, and a request has about nine (decision 59).
"""

import os
import struct
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from typing import Final, NamedTuple
from urllib.parse import unquote

from tpuserve_formats.varint import varint

INTERNAL, SERVER = 1, 2
_INTERNAL_KIND: Final = b"\x30\x01"
_KINDS: Final = {INTERNAL: _INTERNAL_KIND, SERVER: b"\x30\x02"}
_SPAN_IDS: Final = 1 << 64
# Sampled, and whether the parent is a span of another process is known.
_FLAGS: Final = b"\x85\x01\x01\x01\x00\x00"
_REMOTE_FLAGS: Final = b"\x85\x01\x01\x03\x00\x00"
_LINK_FLAGS: Final = b"\x35\x01\x01\x00\x00"
_ERROR: Final = b"\x7a\x02\x18\x02"
_TIMES: Final = struct.Struct("<cQcQ")

Value = str | int | bool


class SpanId(NamedTuple):
    """Identifiers of a span in bytes: 16 of its trace, and 8 of the span."""

    trace: bytes
    span: bytes


def span(
    id_: SpanId,
    name: str,
    start_ns: int,
    end_ns: int,
    *parts: bytes,
    kind: int = INTERNAL,
    parent: bytes = b"",
    is_parent_remote: bool = False,
    state: str = "",
    is_error: bool = False,
) -> bytes:
    """Return a span as a field of ScopeSpans. Times are since 1970, and `parts` are attributes and links."""
    return _message(
        b"\x12",
        b"".join(
            (
                b"\x0a\x10" + id_.trace + b"\x12\x08" + id_.span,
                _state(state),
                b"\x22\x08" + parent if parent else b"",
                _name(name),
                _KINDS[kind],
                _TIMES.pack(b"\x39", start_ns, b"\x41", end_ns),
                *parts,
                _ERROR if is_error else b"",
                _REMOTE_FLAGS if is_parent_remote else _FLAGS,
            )
        ),
    )


class Children:
    """Writer of the children of one span: `span` for a special case, in half the time."""

    def __init__(self, parent: SpanId, state: str) -> None:
        """Write children with the parent's `state`."""
        self._trace = b"\x0a\x10" + parent.trace + b"\x12\x08"
        self._parent = _state(state) + b"\x22\x08" + parent.span
        self._number = int.from_bytes(parent.span, "big")

    def span(self, name: str, start_ns: int, end_ns: int, parts: bytes) -> bytes:
        """Return the next child."""
        # Counting up from a random identifier is as unique in the trace as drawing another one.
        self._number = (self._number + 1) % _SPAN_IDS or 1
        times = _TIMES.pack(b"\x39", start_ns, b"\x41", end_ns)
        content = b"".join(
            (
                self._trace,
                self._number.to_bytes(8, "big"),
                self._parent,
                _name(name),
                _INTERNAL_KIND,
                times,
                parts,
                _FLAGS,
            )
        )
        return b"\x12" + varint(len(content)) + content


@lru_cache(maxsize=4096, typed=True)
def attribute(name: str, value: Value) -> bytes:
    """Return an attribute of a span. Few values occur often."""
    return _message(b"\x4a", _key_value(name, value))


def rare_attribute(name: str, value: Value) -> bytes:
    """Return an attribute whose value rarely occurs again."""
    return _message(b"\x4a", _key_value(name, value))


def link(id_: SpanId) -> bytes:
    """Return a link to another span of this server."""
    return _message(b"\x6a", b"\x0a\x10" + id_.trace + b"\x12\x08" + id_.span + _LINK_FLAGS)


def resource(attributes: Mapping[str, Value]) -> bytes:
    """Return the description of this process as a field of ResourceSpans."""
    return _message(b"\x0a", b"".join(_message(b"\x0a", _key_value(*each)) for each in attributes.items()))


def scope(name: str, version: str) -> bytes:
    """Return the name of the instrumentation as a field of ScopeSpans."""
    return _message(b"\x0a", _message(b"\x0a", name.encode()) + _message(b"\x12", version.encode()))


def request(resource_: bytes, scope_: bytes, spans: Iterable[bytes]) -> bytes:
    """Return an ExportTraceServiceRequest."""
    return _message(b"\x0a", resource_ + _message(b"\x12", scope_ + b"".join(spans)))


def _state(state: str) -> bytes:
    return _message(b"\x1a", state.encode()) if state else b""


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return _message(b"\x2a", name.encode(errors="replace"))


def _key_value(name: str, value: Value) -> bytes:
    if isinstance(value, bool):
        content = b"\x10\x01" if value else b"\x10\x00"
    elif isinstance(value, int):
        content = b"\x18" + varint(value)
    else:
        content = _message(b"\x0a", value.encode(errors="replace"))
    return _message(b"\x0a", name.encode()) + _message(b"\x12", content)


def _message(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


SERVICE_NAME: Final = "tpuserve"


def find_resource(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the attributes that describe this process in its spans.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override those of the server.
    """
    attributes: dict[str, Value] = {
        "service.name": SERVICE_NAME,
        "service.version": version(),
        "service.instance.id": str(uuid.uuid4()),
        "process.pid": os.getpid(),
    }
    for entry in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = entry.partition("=")
        if equals and name.strip():
            attributes[name.strip()] = unquote(value.strip())
    if service := environment.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = service
    return attributes


def version() -> str:
    """Return the version of the server's distribution."""
    return metadata.version("tpuserve-server")
