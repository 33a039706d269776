"""Lines of the table."""

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Result of a line. Only WRONG is an error."""

    RIGHT = "right"
    REFUSED = "refused"
    SKIPPED = "skipped"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Line:
    """One model, source, signature and protocol.

    `alone`, `together` and `at_once` are the largest differences from the source's outputs. They are for rows sent one
    by one, in one request, and in concurrent requests that the server may batch. None if not sent.
    """

    stranger: str
    source: str
    signature: str
    protocol: str
    verdict: Verdict
    reason: str = ""
    tolerance: str = ""
    alone: float | None = None
    together: float | None = None
    at_once: float | None = None
    seconds: float = 0.0
