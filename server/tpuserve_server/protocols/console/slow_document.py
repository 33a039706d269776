"""The document of /debug/slow: the slowest requests of the last minutes, with their stages."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tpuserve_server.observe.requests.request_record import WINDOW_S, RequestRecord

_MILLISECONDS: Final = 1e3
# Microseconds, as in the header `server-timing`.
_DIGITS: Final = 3


def describe_slow(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return these requests as JSON, in their order."""
    return {"window_s": WINDOW_S, "requests": [_describe(record) for record in records]}


def _describe(record: RequestRecord) -> dict[str, Any]:
    return {
        "ended": datetime.fromtimestamp(record.ended_unix_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "protocol": record.protocol,
        "method": record.method,
        "model": record.model,
        "version": record.version,
        "signature": record.signature,
        "code": record.code.name,
        "latency_ms": _ms(record.latency_s),
        "request_id": record.request_id,
        "trace_id": "" if record.trace is None else record.trace.trace_id,
        "cached": record.is_cached,
        "stages": [
            {
                "name": stage.name,
                "start_ms": _ms(stage.started_s - record.started_s),
                "duration_ms": _ms(stage.duration_s),
                "reason": stage.reason,
            }
            for stage in record.stages
            if stage.name != "total"
        ],
    }


def _ms(duration_s: float) -> float:
    return round(duration_s * _MILLISECONDS, _DIGITS)
