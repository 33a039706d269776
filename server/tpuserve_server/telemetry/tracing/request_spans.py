"""Spans of one request: the server's span, and a child for each stage."""

from functools import lru_cache
from typing import Final

from tpuserve_server.core.errors import Code
from tpuserve_server.telemetry.request_record import RequestRecord
from tpuserve_server.telemetry.stages import started_runs
from tpuserve_server.telemetry.trace_context import TraceContext
from tpuserve_server.telemetry.tracing.batch_spans import BatchSpans
from tpuserve_server.telemetry.tracing.message import (
    SERVER,
    Children,
    SpanId,
    Value,
    attribute,
    link,
    rare_attribute,
    span,
)

NANOSECONDS: Final = 1e9
# Faults of the server, not of the client (OpenTelemetry's semantic conventions for gRPC servers).
_FAULTS: Final = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)


def request_spans(record: RequestRecord, trace: TraceContext, batches: BatchSpans) -> list[bytes]:
    """Return the spans of a traced request, and note it in the batches that it ran in."""
    id_ = SpanId(bytes.fromhex(trace.trace_id), bytes.fromhex(trace.span_id))
    # The difference between times since 1970 and those of `Clock.monotonic_s`.
    offset_ns = int(record.ended_unix_s * NANOSECONDS) - int(record.ended_s * NANOSECONDS)
    *stages, total = record.stages
    spans = [
        span(
            id_,
            record.method,
            offset_ns + int(total.started_s * NANOSECONDS),
            offset_ns + int(record.ended_s * NANOSECONDS),
            _attributes(record.protocol, record.code, record.model, record.version, record.signature, record.is_cached),
            rare_attribute("tpuserve.request_id", record.request_id) if record.request_id else b"",
            kind=SERVER,
            parent=bytes.fromhex(trace.parent_id),
            is_parent_remote=bool(trace.parent_id),
            state=trace.state,
            is_error=record.code in _FAULTS,
        )
    ]
    links = _links(record, id_, offset_ns, batches)
    children = Children(id_, trace.state)
    for name, stage_s, duration_s, reason in stages:
        started_ns = offset_ns + int(stage_s * NANOSECONDS)
        parts = (rare_attribute("tpuserve.reason", reason) if reason else b"") + links.get(name, b"")
        spans.append(children.span(name, started_ns, started_ns + int(duration_s * NANOSECONDS), parts))
    return spans


def _links(record: RequestRecord, id_: SpanId, offset_ns: int, batches: BatchSpans) -> dict[str, bytes]:
    """Return the links to batches by the name of the stage that ran them."""
    several = len(record.times) > 1
    return {
        f"step{position}.execute" if several else "execute": b"".join(
            link(batches.add(run, times.servable, id_, offset_ns)) for run in started_runs(times)
        )
        for position, times in enumerate(record.times, start=1)
    }


@lru_cache(maxsize=1024)
def _attributes(protocol: str, code: Code, model: str, version: int | None, signature: str, is_cached: bool) -> bytes:
    """Return the attributes that many requests have in common."""
    values: dict[str, Value | None] = {
        "tpuserve.protocol": protocol,
        "tpuserve.code": code.name,
        "error.type": code.name if code in _FAULTS else None,
        "tpuserve.model": model or None,
        "tpuserve.version": version,
        "tpuserve.signature": signature or None,
        "tpuserve.cached": is_cached or None,
    }
    return b"".join(attribute(name, value) for name, value in values.items() if value is not None)
