"""The truth table as text, for documents and terminals."""

from collections.abc import Sequence

from tests.loadtests.truth.row import Pair, Row

_HEADINGS = (
    "shape",
    "behaviour",
    "planned",
    "sent said/logged",
    "errors said/true",
    "dropped said/true",
    "p50 ms said/true",
    "p99 ms said/true",
    "deviation",
    "exit",
    "verdict",
)


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as a Markdown table, and the number of right rows."""
    cells = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    wrong = [row for row in rows if not row.is_right]
    excused = [row for row in rows if row.is_right and row.wrong_figures]
    print(
        f"\n{len(rows)} rows: {len(rows) - len(wrong) - len(excused)} exact, {len(excused)} excused, {len(wrong)} WRONG"
    )


def _cells(row: Row) -> tuple[str, ...]:
    counts, close = row.counts, row.close
    sent = Pair(counts["sent"].said, row.logged) if "sent" in counts else None
    return (
        row.shape,
        row.behaviour,
        "" if row.planned is None else f"{row.planned:,}",
        f"-/{row.logged:,}" if sent is None else f"{sent.said:,.0f}/{row.logged:,}",
        _counts(counts.get("errors")),
        _counts(counts.get("dropped")),
        _milliseconds(close.get("p50")),
        _milliseconds(close.get("p99")),
        f"{row.deviation:+.1%}" if close else "",
        str(row.exit_code),
        row.verdict,
    )


def _counts(pair: Pair | None) -> str:
    return "" if pair is None else f"{pair.said:,.0f}/{pair.true:,.0f}"


def _milliseconds(pair: Pair | None) -> str:
    if pair is None or pair.said is None or pair.true is None:
        return ""
    return f"{pair.said:.1f}/{pair.true:.1f}"
