"""The table on a terminal, as plain text elsewhere, and as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.strangers.line import Line, Verdict

_COLUMNS = (
    "model",
    "source",
    "signature",
    "protocol",
    "alone",
    "together",
    "at once",
    "tolerance",
    "verdict",
    "seconds",
)
_NUMBERS = frozenset({"alone", "together", "at once", "seconds"})
_STYLES = {Verdict.RIGHT: "green", Verdict.REFUSED: "cyan", Verdict.SKIPPED: "yellow", Verdict.WRONG: "bold red"}


def print_table(console: Console, lines: Sequence[Line], seconds: float, reports: Mapping[str, str]) -> None:
    """Print a row for each line, the public reports by model, and the number of lines by verdict."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column != "verdict")
    for line in lines:
        table.add_row(*(Text(cell) for cell in _cells(line)), style=_STYLES[line.verdict])
    console.print(table)
    for name in dict.fromkeys(line.stranger for line in lines if line.stranger in reports):
        console.print(Text(f"{name} is a failure of {reports[name]}"))
    counts = Counter(line.verdict for line in lines)
    expected = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]) or "no lines"
    models = len({line.stranger for line in lines})
    console.print(Text(f"{models} models, {len(lines)} lines: {expected}, in {seconds / 60:.1f} min"))


def write_json(path: Path, lines: Sequence[Line], seconds: float, reports: Mapping[str, str], *, ok: bool) -> None:
    """Write one document: `ok`, `seconds`, `lines`, and the public reports by model."""
    document = {"ok": ok, "seconds": round(seconds, 1), "lines": [asdict(line) for line in lines], "reports": reports}
    path.write_text(json.dumps(document, indent=2) + "\n")


def _cells(line: Line) -> list[str]:
    verdict = f"{line.verdict}: {line.reason}" if line.reason else str(line.verdict)
    differences = (_number(value) for value in (line.alone, line.together, line.at_once))
    return [
        line.stranger, line.source, line.signature, line.protocol, *differences, line.tolerance, verdict,
        f"{line.seconds:.1f}",
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
