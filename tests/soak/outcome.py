"""Outcome of one request: an answer, a typed error, or one of the ways to get neither."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The result that the client received.

    A request is accepted once the client has sent it completely. ENDED and LATE are accepted requests without an
    answer. REFUSED requests never reached a server.
    """

    ANSWERED = "answered"
    WRONG = "wrong"
    ERROR = "typed error"
    REFUSED = "connection refused"
    ENDED = "connection ended"
    LATE = "no answer in time"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome. `code` is the name of the canonical code of a typed error. `detail` is for people."""

    kind: Kind
    code: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return self.code or self.kind.value


class RequestError(Exception):
    """A request without an answer. Its outcome has the reason."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome}: {outcome.detail}")
        self.outcome = outcome
