"""The table of faults as plain text, Markdown and JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.faults.fault_row import FaultRow

CASES: Final = range(1, 53)
NOT_RUN: Final = "this run has no test of it"

_TITLES: Final = (
    "case", "fault", "protocol", "expected", "got", "MB before", "MB after", "others ms", "result",
)  # fmt: skip


def complete(rows: Iterable[FaultRow], reasons: Mapping[int, Sequence[str]]) -> list[FaultRow]:
    """Return the rows in the order of the cases, with a row "not tested: reason" for each reason and missing case."""
    found = list(rows)
    missing = {case: (NOT_RUN,) for case in CASES if case not in reasons and not any(row.case == case for row in found)}
    for case, why in {**reasons, **missing}.items():
        found += [FaultRow(case, "", "", "", f"not tested: {reason}", passed=False) for reason in why]
    return sorted(found, key=lambda row: (row.case, row.fault, row.protocol))


def text_table(rows: Sequence[FaultRow]) -> str:
    """Return the table with columns aligned by spaces."""
    lines = [_TITLES, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_TITLES))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def markdown_table(rows: Sequence[FaultRow]) -> str:
    lines = [_TITLES, ("---",) * len(_TITLES), *map(_cells, rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def json_table(rows: Sequence[FaultRow]) -> str:
    return json.dumps([row.to_json() for row in rows], indent=1) + "\n"


def _cells(row: FaultRow) -> tuple[str, ...]:
    return (
        str(row.case), row.fault, row.protocol, row.expected, row.got,
        _number(row.before_mb), _number(row.after_mb), _number(row.others_worst_ms), _result(row),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _result(row: FaultRow) -> str:
    if row.passed:
        return "pass"
    return "" if row.got.startswith("not tested") else "FAIL"
