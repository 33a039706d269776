"""The table of findings: verdicts of the load tester on servers that mislead it, next to the servers' own records."""

import fnmatch
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.loadgen.findings import Environment, Finding, Seen, findings
from benchmarks.loadgen.wrong_rollout import missed_gate, wrong_under_load

_ROLLOUTS = (
    Finding("rollout to a version that is wrong above two in flight", "refused, exit 1", wrong_under_load),
    Finding("rollout to a version that misses a gate", "refused before a label moves", missed_gate),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A finding with the verdicts of the environment before, if any, and of this one."""

    finding: Finding
    before: Seen | None
    now: Seen

    def as_document(self) -> dict[str, object]:
        """Return the row as JSON."""
        seen = {"before": self.before and asdict(self.before), "now": asdict(self.now)}
        return {"finding": self.finding.name, "should": self.finding.should, **seen}

    def cells(self) -> list[str]:
        """Return the cells of a Markdown row."""
        before = [] if self.before is None else [_words(self.before)]
        return [self.finding.name, self.now.record, self.finding.should, *before, _words(self.now)]


def _words(seen: Seen) -> str:
    code = "" if seen.exit_code is None else f" ({seen.exit_code})"
    return f"{'yes' if seen.is_right else '**no**'}: {seen.verdict}{code}"


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Python of an environment to judge first.")
@click.option("--chance/--no-chance", default=None, help="Only the rows of generated series, or only the others.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def truth(patterns: Sequence[str], before: Path | None, chance: bool | None, as_json: bool) -> None:
    """Judge servers that mislead a load test, whose own record is known. PATTERNs select rows, such as 'soak*'.

    The exit code is 1 if a verdict is not what it should be.
    """
    # A shell ignores SIGINT in a command of the background, and the load tests would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [
        finding
        for finding in (*findings(), *_ROLLOUTS)
        if chance in (None, finding.is_chance)
        and (not patterns or any(fnmatch.fnmatchcase(finding.name, pattern) for pattern in patterns))
    ]
    rows = list(_judged(chosen, before))
    print(json.dumps([row.as_document() for row in rows], indent=1) if as_json else _table(rows))
    sys.exit(any(not row.now.is_right for row in rows))


@click.command()
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Python of an environment to judge first.")
@click.option("--trials", default=10, show_default=True, type=click.IntRange(10, 100), help="Comparisons of a change.")
@click.option(
    "--conditions", multiple=True, default=(0.01, 0.04), show_default=True,
    help="Standard deviation of a round's conditions. Repeat it for more columns.",
)  # fmt: skip
def power(before: Path | None, trials: int, conditions: Sequence[float]) -> None:
    """Find the smallest changes that comparisons of two minutes find in 9 of 10 trials, in generated series.

    A comparison has ten rounds of six seconds for each side, at 200 requests per second.
    """
    environments = [*([("before, ", before.absolute())] if before else []), ("", Path(sys.executable))]
    found = {}
    for spread in conditions:
        for name, python in environments:
            heading = f"{name}rounds vary by {100 * spread:g} %"
            click.echo(heading, err=True)
            found[heading] = Environment(python).generated(f"power {spread:g}", trials)
    figures = dict.fromkeys(figure for column in found.values() for figure in column)
    lines = [["change of", *found], ["---"] * (1 + len(found))]
    for figure in figures:
        shares = [column.get(figure) for column in found.values()]
        lines.append([figure, *("none" if share is None else f"{100 * share:g} %" for share in shares)])
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def _judged(chosen: Sequence[Finding], before: Path | None) -> Iterator[Row]:
    now = Environment(Path(sys.executable))
    for number, finding in enumerate(chosen, 1):
        old = finding.judge(Environment(before.absolute())) if before else None
        row = Row(finding, old, finding.judge(now))
        click.echo(f"{number} of {len(chosen)}: {finding.name}: {_words(row.now)}", err=True)
        yield row


def _table(rows: Sequence[Row]) -> str:
    has_before = any(row.before for row in rows)
    headings = ["finding", "the server's record", "should be", *(["before"] if has_before else []), "now"]
    lines = [headings, ["---"] * len(headings), *(row.cells() for row in rows)]
    right = sum(row.now.is_right for row in rows)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    old = f", {sum(row.before.is_right for row in rows if row.before)} before" if has_before else ""
    return f"{table}\n\n{right} of {len(rows)} verdicts are right{old}."
