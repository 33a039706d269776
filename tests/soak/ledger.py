"""Ledger: counts every request of the traffic, and judges its outcome.

A request is lost if the client sent all of it while the server lived, and got neither an answer nor a typed error:
the connection ended, or 60 s passed. Requests in flight in a process that a fault ends are that fault's victims. They
must get UNAVAILABLE over gRPC, or the end of their connection over HTTP/1.1, which has no other form. They are counted
by cause, and are not lost.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.soak.outcome import Kind, Outcome
from tests.soak.windows import Windows

# Failures that the table prints, and that the JSON document has.
MOST_SHOWN: Final = 20
_MOST_KEPT: Final = 1000
_OWN_DEADLINE: Final = "its own short deadline"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: protocol and method, model, times, and whether its deadline was too short on purpose."""

    protocol: str
    method: str
    model: str
    from_s: float
    until_s: float
    is_short: bool = False

    def __str__(self) -> str:
        # The server's log has the same form of time.
        ended = time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + self.until_s))
        took_s = self.until_s - self.from_s
        return f"{self.protocol} {self.method} {self.model}, ended {ended} after {took_s:.2f} s"


@dataclass
class Ledger:
    """The counts so far. Used by one event loop."""

    windows: Windows
    requests: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    methods: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Outcomes that a cause explains: (cause, outcome).
    explained: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: int = 0
    lost: int = 0
    # Typed errors and refused connections that no fault explains.
    unexplained: int = 0
    failures: list[str] = field(default_factory=list)

    def record(self, sent: Sent, outcome: Outcome) -> None:
        """Count a request by its outcome."""
        self.requests[sent.protocol] += 1
        self.methods[sent.protocol, sent.method] += 1
        if outcome.kind is Kind.ANSWERED:
            self.answered[sent.protocol] += 1
            return
        if outcome.kind is Kind.WRONG:
            self.wrong += 1
        elif cause := self._cause(sent, outcome):
            self.explained[cause, str(outcome)] += 1
            return
        elif outcome.kind in (Kind.ENDED, Kind.LATE):
            self.lost += 1
        else:
            self.unexplained += 1
        if len(self.failures) < _MOST_KEPT:
            self.failures.append(f"{sent}: {outcome}: {outcome.detail}"[:1000])

    @property
    def is_clean(self) -> bool:
        return not (self.wrong or self.lost or self.unexplained)

    def _cause(self, sent: Sent, outcome: Outcome) -> str:
        if sent.is_short and outcome.code in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
            return _OWN_DEADLINE
        return self.windows.cause(sent.model, outcome, sent.from_s, sent.until_s)
