"""The replies of an OTLP receiver, read by hand: spans that it rejected, and the pause that it asks for.

Sources: opentelemetry-proto (collector/trace/v1/trace_service.proto), google/rpc/status.proto and error_details.proto.
A reply that cannot be read counts as one without these fields: its status has already reported the outcome.
"""

import email.utils
from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuserve_formats.errors import FormatError
from tpuserve_formats.varint import read_varint


class ExportError(Exception):
    """The receiver did not take a request, or cannot be used. The message has the reason for the operator."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        """Allow a retry after `retry_after_s` seconds. None: a retry would fail, too."""
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def reason_of(error: BaseException) -> str:
    """Return the operating system's words for an error, or the error's own."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_MOST_OF_REASON: Final = 512
_MOST_INT64: Final = (1 << 63) - 1
_RETRY_INFO: Final = b"/google.rpc.RetryInfo"
_NANOSECONDS: Final = 1e9


class Rejection(NamedTuple):
    """Number of spans that a receiver rejected although it took their request, and its reason, if any."""

    spans: int = 0
    reason: str = ""


def read_rejection(response: bytes) -> Rejection:
    """Return the `partial_success` of an ExportTraceServiceResponse."""
    spans, reason = 0, b""
    for number, success in _fields(response):
        if number == 1 and isinstance(success, bytes):
            for inner, value in _fields(success):
                if inner == 1 and isinstance(value, int):
                    spans = value if value <= _MOST_INT64 else 0
                elif inner == 2 and isinstance(value, bytes):
                    reason = value
    return Rejection(spans, reason[:_MOST_OF_REASON].decode(errors="replace"))


def read_retry_delay_s(status: bytes) -> float | None:
    """Return the `retry_delay` of the RetryInfo in a google.rpc.Status, or None if it has none."""
    for number, detail in _fields(status):
        if number == 3 and isinstance(detail, bytes):
            fields = dict(_fields(detail))
            kind, content = fields.get(1), fields.get(2, b"")
            if isinstance(kind, bytes) and kind.endswith(_RETRY_INFO) and isinstance(content, bytes):
                return _duration_s(dict(_fields(content)).get(1))
    return None


def read_retry_after_s(header: str, now_unix_s: float) -> float:
    """Return the seconds of a Retry-After header, which has a number or a date (RFC 9110, 10.2.3). 0 if invalid."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - now_unix_s, 0.0)
    except (ValueError, OverflowError):
        return 0.0


def _duration_s(duration: int | bytes | None) -> float:
    fields = dict(_fields(duration)) if isinstance(duration, bytes) else {}
    seconds, nanoseconds = fields.get(1, 0), fields.get(2, 0)
    if not (isinstance(seconds, int) and isinstance(nanoseconds, int)) or max(seconds, nanoseconds) > _MOST_INT64:
        return 0.0
    return seconds + nanoseconds / _NANOSECONDS


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field, up to the first that cannot be read. Fixed values are bytes."""
    position = 0
    while position < len(message):
        try:
            tag, position = read_varint(message, position)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, position = read_varint(message, position)
                yield number, value
                continue
            size, position = (_FIXED_BYTES[kind], position) if kind != _BYTES else read_varint(message, position)
        except (FormatError, KeyError):
            return
        yield number, message[position : position + size]
        position += size
