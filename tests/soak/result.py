"""Result of a soak: its counts, journal and levels, and whether it passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.soak.chaos import Entry
from tests.soak.ledger import Ledger
from tests.soak.levels import Level, Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that the table shows. `ended` is the exit status of the server after SIGTERM."""

    seed: int
    seconds: float
    ledger: Ledger
    journal: Sequence[Entry]
    skipped: Mapping[str, str]
    levels: Sequence[Level]
    ended: int
    has_traceback: bool

    @property
    def problems(self) -> list[str]:
        """Why the soak failed, for people. Empty if it passed."""
        ledger = self.ledger
        counts = {
            "wrong answers": ledger.wrong,
            "accepted and lost": ledger.lost,
            "errors without a fault that explains them": ledger.unexplained,
        }
        found = [f"{name}: {count}" for name, count in counts.items() if count]
        found += [f"{one.fault}: {one.problem}" for one in self.journal if one.problem]
        found += [f"{one.name} grows" for one in self.levels if one.verdict is Verdict.GROWS]
        if self.ended != 0:
            found.append(f"exit status {self.ended} after SIGTERM")
        if self.has_traceback:
            found.append("the log has a traceback")
        return found

    def document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        ledger = self.ledger
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "requests": dict(ledger.requests),
            "answered": dict(ledger.answered),
            "methods": [
                {"protocol": protocol, "method": method, "requests": count}
                for (protocol, method), count in sorted(ledger.methods.items())
            ],
            "explained": [
                {"cause": cause, "outcome": outcome, "requests": count}
                for (cause, outcome), count in sorted(ledger.explained.items())
            ],
            "wrong": ledger.wrong,
            "lost": ledger.lost,
            "unexplained": ledger.unexplained,
            "failures": ledger.failures,
            "faults": [
                {"fault": one.fault, "took_s": round(one.took_s, 2), "detail": one.detail, "problem": one.problem}
                for one in self.journal
            ],
            "skipped": dict(self.skipped),
            "levels": [
                {
                    "name": one.name, "start": one.start, "tenth": one.tenth, "end": one.end,
                    "per_hour": one.per_hour, "limit_per_hour": one.limit_per_hour, "verdict": one.verdict.value,
                }
                for one in self.levels
            ],
            "exit_status": self.ended,
            "problems": self.problems,
        }  # fmt: skip
