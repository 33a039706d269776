"""One bad request of the tables in json_requests.py, proto_requests.py and oip_requests.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.faults.faulted_server import MEMORY_MB


@dataclass(frozen=True, slots=True)
class BadRequest:
    """A request, the status or code that it must get, and a part of the message.

    `expected` may be a success, for requests that look bad and are valid.
    """

    case: int
    fault: str
    protocol: str
    body: bytes
    expected: tuple[str, ...]
    says: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    # Resident memory that may remain.
    memory_mb: float = MEMORY_MB

    def __str__(self) -> str:
        return f"{self.case}-{self.protocol}-{self.fault}".replace(" ", "_")
