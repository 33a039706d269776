"""The table of a run of the zoo: a row for each kind of forms of each way to save, and the new faults below it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.zoo.known import known_reason
from tests.zoo.sandbox import Verdict
from tests.zoo.sweep import Line

TITLES: Final = (
    "saved", "forms of kind", "models", "forms", "requests", "refused", "answered", "failed", "died", "hung",
    "slowest ms", "largest MB", "known", "faults",
)  # fmt: skip
# Faults that a table shows; JSON has all.
MOST_SHOWN: Final = 60


@dataclass(slots=True)
class Row:
    """The requests of one kind of forms."""

    saved: str
    kind: str
    models: set[str] = field(default_factory=set)
    forms: set[tuple[str, str]] = field(default_factory=set)
    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    requests: int = 0
    slowest_ms: float = 0.0
    largest_mb: float = 0.0
    known: int = 0
    faults: int = 0

    def add(self, line: Line, *, is_known: bool) -> None:
        """Count a line, whose fault may be known."""
        self.models.add(line.model)
        self.forms.add((line.model, line.form))
        self.verdicts[line.verdict] += 1
        self.requests += 1
        self.slowest_ms = max(self.slowest_ms, line.ms)
        self.largest_mb = max(self.largest_mb, line.mb)
        self.known += is_known
        self.faults += bool(line.fault) and not is_known

    @property
    def cells(self) -> tuple[str, ...]:
        counts = (len(self.models), len(self.forms), self.requests)
        verdicts = (Verdict.REFUSED, Verdict.ANSWERED, Verdict.FAILED, Verdict.DIED, Verdict.HUNG)
        numbers = (
            *counts,
            *(self.verdicts[one] for one in verdicts),
            self.slowest_ms,
            self.largest_mb,
            self.known,
            self.faults,
        )
        return (self.saved, self.kind, *(f"{number:.0f}" for number in numbers))


class ZooTable:
    """Rows that fill while the zoo runs."""

    def __init__(self) -> None:
        """Start without rows."""
        self._rows: dict[tuple[str, str], Row] = {}
        self._all = Row("all", "")
        self._known: dict[str, str] = {}
        # Lines with new faults.
        self.faulty: list[Line] = []

    def add(self, line: Line) -> None:
        """Count a line in its row and in the last one."""
        reason = known_reason(line)
        if reason:
            self._known[line.model] = reason
        row = self._rows.setdefault((line.saved, line.kind), Row(line.saved, line.kind))
        for one in (row, self._all):
            one.add(line, is_known=bool(reason))
        if line.fault and not reason:
            self.faulty.append(line)

    def text(self) -> str:
        """Return the table with columns aligned by spaces, and the faults."""
        lines = [TITLES, *self._cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(TITLES))]
        rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(row.rstrip() for row in rows), *self._shown()]) + "\n"

    def markdown(self) -> str:
        """Return the table and the faults as Markdown."""
        lines = [TITLES, ("---",) * len(TITLES), *self._cells()]
        rows = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*rows, "", *(f"- `{one}`" for one in self._shown())]) + "\n"

    def json(self) -> str:
        """Return the rows and all faults as JSON."""
        rows = [dict(zip(TITLES, cells, strict=True)) for cells in self._cells()]
        return json.dumps({"rows": rows, "faults": [asdict(line) for line in self.faulty]}, indent=1) + "\n"

    def _shown(self) -> Iterator[str]:
        yield from (f"known: {model}: {reason}" for model, reason in self._known.items())
        for line in self.faulty[:MOST_SHOWN]:
            yield f"{line.saved} {line.model} {line.kind} {line.form} over {line.protocol}: {line.fault}"
        if len(self.faulty) > MOST_SHOWN:
            yield f"and {len(self.faulty) - MOST_SHOWN} more"

    def _cells(self) -> list[tuple[str, ...]]:
        return [row.cells for row in (*self._rows.values(), self._all)]
