"""Priority of a request on the wire: REST's header and gRPC's metadata have the same name and the same values."""

from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority

PRIORITY_HEADER: Final = "x-tpuserve-priority"

_PRIORITIES: Final = {b"high": Priority.HIGH, b"low": Priority.LOW}
_MOST_SHOWN = 32


def parse_priority(value: bytes | None) -> Priority:
    """Parse a header's value. None means HIGH.

    Raises:
        InvalidArgument: `value` is neither `high` nor `low`.
    """
    if value is None:
        return Priority.HIGH
    priority = _PRIORITIES.get(value.strip().lower())
    if priority is None:
        raise InvalidArgument(f"{PRIORITY_HEADER} must be high or low; was {value[:_MOST_SHOWN].decode('latin-1')!r}")
    return priority
