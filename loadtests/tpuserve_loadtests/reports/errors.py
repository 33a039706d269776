"""Tables of the most frequent failures, with the server's messages."""

from collections.abc import Sequence
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.run import LINE_TITLES
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.parts import Row, Table, Text

_MOST_PRINTED: Final = 5
_MOST_ROWS: Final = 20


def errors_table(runs: Sequence[Measured]) -> Table:
    """List the most common failures of all runs."""
    counts: dict[tuple[str, str], int] = {}
    for measured in runs:
        for error in measured.recorder.errors():
            key = (error.line, error.message)
            counts[key] = counts.get(key, 0) + error.count
    ranked = sorted(counts.items(), key=lambda one: -one[1])
    rows = [Row(message, [line_title(line), f"{count:,}"]) for (line, message), count in ranked[:_MOST_ROWS]]
    hidden = sum(count for _, count in ranked[_MOST_ROWS:])
    if hidden:
        rows.append(Row(counted(len(ranked) - _MOST_ROWS, "other message"), ["", f"{hidden:,}"]))
    return Table("Failures", ["message", "line", "requests"], rows)


def printed_errors(measured: Measured) -> list[Text]:
    """List the most common failures of a run, a line each."""
    errors = measured.recorder.errors()
    shown, hidden = errors[:_MOST_PRINTED], errors[_MOST_PRINTED:]
    lines = [Text(f"  {error.count:,} x {line_title(error.line)}: {error.message}") for error in shown]
    count = sum(error.count for error in hidden)
    return (
        [*lines, Text(f"  {count:,} x {counted(len(hidden), 'other kind')} of error", folds=True)] if hidden else lines
    )


def most_frequent(message: str) -> str:
    """Return the most frequent error as the end of a sentence."""
    return f"most often with: {message}"


def line_title(name: str) -> str:
    """Return the title of a line in tables: a protocol's proper name, or the line's own name."""
    return LINE_TITLES.get(name, name)
