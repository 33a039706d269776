"""Rows of the table of faults: one fault over one protocol, and its effect."""

from dataclasses import asdict, dataclass
from typing import Final, Self

# Key of the rows in the properties of a test's report, which pytest-xdist sends to its controller.
PROPERTY: Final = "fault"


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One row. Memory is resident memory of the server's processes, in MB of 10^6 bytes.

    `others_worst_ms` is the worst latency of good requests during the fault, if another process measured it.
    """

    case: int
    fault: str
    protocol: str
    expected: str
    got: str
    before_mb: float | None = None
    after_mb: float | None = None
    others_worst_ms: float | None = None
    passed: bool = True

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, object]) -> Self:
        return cls(**document)  # type: ignore[arg-type]  # `to_json` of another process wrote it.
