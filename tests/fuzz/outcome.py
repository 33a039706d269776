"""Outcome: what a session has done, from its counts, its log and its exit status, as a row of the table."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.fuzz.shared_counts import read_counts

HEADINGS: Final = ("target", "executions", "per second", "accepted", "features", "finding")
# libFuzzer's line: branches and their counts that inputs have reached.
_FEATURES: Final = re.compile(r"\bft: (\d+)")
_ERROR: Final = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Finding|Exception|Failure|Interrupt)\b.*|^==\d+== ERROR: .*", re.MULTILINE
)
_MOST_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Outcome:
    """One session. `features` is 0 for a target without coverage, and `finding` is empty for none."""

    target: str
    executions: int
    seconds: float
    accepted: int
    features: int
    finding: str

    @classmethod
    def read(cls, target: str, seconds: float, status: int, log: Path, counts: Path) -> Self:
        """Read the outcome of a session that has ended with `status`."""
        text = log.read_text(errors="replace")
        done = read_counts(counts)
        features = [int(found) for found in _FEATURES.findall(text)]
        errors = _ERROR.findall(text)
        # libFuzzer's own line, such as for a timeout, follows the error of Python.
        own = [error for error in errors if not error.startswith("==")]
        finding = "" if status == 0 else [f"exit status {status}", *errors[-1:], *own[-1:]][-1]
        return cls(target, done.executions, seconds, done.accepted, max(features, default=0), finding)

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        share = f"{self.accepted / self.executions:.0%}" if self.executions else "-"
        rate = f"{self.executions / self.seconds:,.0f}" if self.seconds else "-"
        features = f"{self.features:,}" if self.features else "-"
        return self.target, f"{self.executions:,}", rate, share, features, self.finding[:_MOST_SHOWN] or "none"


def table(outcomes: list[Outcome]) -> str:
    """Return the table as text."""
    rows = [HEADINGS, *(outcome.cells() for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)
