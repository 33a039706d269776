"""Table of a soak's result, as text."""

from collections.abc import Iterator, Sequence

from tests.soak.ledger import MOST_SHOWN
from tests.soak.levels import Level
from tests.soak.result import Result


def text_table(result: Result) -> str:
    """Return all parts of the table."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    ledger = result.ledger
    yield f"Soak, {result.seconds / 60:.1f} min, seed {result.seed}"
    yield ""
    rows = [
        [protocol, f"{count:,}", f"{ledger.answered[protocol]:,}"]
        for protocol, count in sorted(ledger.requests.items())
    ]
    total = [f"{counts.total():,}" for counts in (ledger.requests, ledger.answered)]
    yield from _aligned(["protocol", "requests", "answered and right"], [*rows, ["all", *total]])
    yield ""
    explained = [[cause, outcome, f"{count:,}"] for (cause, outcome), count in sorted(ledger.explained.items())]
    yield from _aligned(["cause", "outcome", "requests"], explained)
    yield ""
    yield from _aligned(["fault", "times", "longest", "result"], list(_faults(result)))
    yield ""
    yield from _aligned(
        ["figure", "start", "10 %", "end", "an hour", "limit", "verdict"], list(map(_level, result.levels))
    )
    yield ""
    yield (
        f"wrong {ledger.wrong}, accepted and lost {ledger.lost}, errors without a cause {ledger.unexplained}, "
        f"exit status {result.ended}"
    )
    yield from ledger.failures[:MOST_SHOWN]
    if len(ledger.failures) > MOST_SHOWN:
        yield f"… and {len(ledger.failures) - MOST_SHOWN} more"
    problems = result.problems
    yield "passed" if not problems else "FAILED: " + "; ".join(problems)


def _level(level: Level) -> list[str]:
    sizes = (f"{value:,.0f} {level.unit}".strip() for value in (level.start, level.tenth, level.end))
    trend = "" if level.per_hour is None else f"{level.per_hour:+,.1f}"
    limit = "" if level.limit_per_hour is None else f"{level.limit_per_hour:,.1f}"
    return [level.name.removesuffix("_mb"), *sizes, trend, limit, level.verdict.value]


def _faults(result: Result) -> Iterator[list[str]]:
    names = list(dict.fromkeys(one.fault for one in result.journal))
    for name in sorted(names):
        entries = [one for one in result.journal if one.fault == name]
        failed = [one.problem for one in entries if one.problem]
        shown = f"{len(failed)} failed: {failed[0][:200]}" if failed else f"as expected; last: {entries[-1].detail}"
        yield [name, str(len(entries)), f"{max(one.took_s for one in entries):.1f} s", shown]
    for name, why in result.skipped.items():
        yield [name, "0", "", f"skipped: {why}"]


def _aligned(head: list[str], rows: Sequence[list[str]]) -> Iterator[str]:
    """Yield the rows with columns of the same width."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
