"""Lines of the table."""

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Every verdict except WRONG is good."""

    RIGHT = "right"
    REFUSED = "refused"
    SKIPPED = "skipped"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Line:
    """One model, source, signature and protocol.

    `alone`, `together` and `at_once` are the largest differences to the source's answers: of rows that are asked one by
    one, in one request, and in requests at the same time, which the server may batch. None where they are not asked.
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
