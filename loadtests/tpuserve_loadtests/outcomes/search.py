"""What a search found: each rate as it was tried, and the statement at the end."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import click
from rich.console import Console
from rich.markup import escape

from tpuserve_loadtests.exit_codes import EXIT_GENERATOR
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.run import PLAIN_WIDTH
from tpuserve_loadtests.rendering.junit import GENERATOR, Case
from tpuserve_loadtests.reports.server_table import changes, print_server_table
from tpuserve_loadtests.searching import Found, Probe
from tpuserve_loadtests.server_side.watched import Watched

_Try: TypeAlias = tuple[Probe, Watched]


@dataclass
class SearchServers:
    """What the server told during a search: of one user `alone`, and of each rate that was tried, in turn."""

    alone: Watched | None = None
    probes: list[_Try] = field(default_factory=list)

    def rows(self, found: Found | None) -> list[tuple[str, Watched]]:
        """What shows what gave in: one user alone, the rate that was found, and the first one that failed."""
        held, failed = self._around(found)
        return [
            *([(str(self.alone.runs[0].load), self.alone)] if self.alone else []),
            *([(f"{held[0].rate_per_s:,.1f}/s holds", held[1])] if held else []),
            *([(f"{failed[0].rate_per_s:,.1f}/s fails", failed[1])] if failed else []),
        ]

    def gave_in(self, found: Found | None) -> str:
        """What the first rate that failed has more of than a user alone; empty where that is not known."""
        _, failed = self._around(found)
        if self.alone is None or failed is None:
            return ""
        probe, watched = failed
        told = changes(self.alone, watched)
        return f"{probe.rate_per_s:,.1f}/s beside {self.alone.runs[0].load}: {told}" if told else ""

    def notes(self, found: Found | None, told: str = "") -> list[str]:
        """What to know of the rows, each once, but for what was `told` already."""
        found_notes = dict.fromkeys(watched.note for _, watched in self.rows(found))
        return [note for note in found_notes if note not in ("", told)]

    def _around(self, found: Found | None) -> tuple[_Try | None, _Try | None]:
        """Of a search that did not end, the highest rate that held and the lowest beyond it that failed."""
        tries = {probe.rate_per_s: (probe, watched) for probe, watched in self.probes}
        if found is not None:
            best, ceiling = found.best, found.ceiling
            return tries.get(best.rate_per_s) if best else None, tries.get(ceiling.rate_per_s) if ceiling else None
        held = max((rate for rate, (probe, _) in tries.items() if probe.holds), default=None)
        failed = min(
            (rate for rate, (probe, _) in tries.items() if not probe.holds and rate > (held or 0)), default=None
        )
        return tries.get(held or 0), tries.get(failed or 0)


def print_search_servers(servers: SearchServers, found: Found | None, console: Console, told: str = "") -> None:
    """Where the time went, what gave in, and notes, but for one that was `told` already."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    print_server_table("load", servers.rows(found), console)
    for line in (servers.gave_in(found), *(f"note: {note}" for note in servers.notes(found, told))):
        if line:
            console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


def print_probe(probe: Probe, measured: Measured) -> None:
    """A line on standard error, as soon as a rate was judged."""
    mark = "holds" if probe.holds else "does not hold"
    click.echo(f"  {probe.rate_per_s:10,.1f}/s  {mark:13}  {probe.reason}", file=sys.stderr)


def search_statement(found: Found | None, probes: Sequence[Probe], problem: str) -> str:
    """What may be said, and how sure it is."""
    if found is None:
        held = max((probe.rate_per_s for probe in probes if probe.holds), default=None)
        so_far = "no rate was shown to hold" if held is None else f"{held:,.1f}/s was the highest that held"
        return f"The search did not end: {problem}. Until then {so_far}."
    if found.best is None and not probes:
        return f"No rate holds: even a user alone, who waits for nobody, gets {problem}."
    if found.best is None:
        tried = min(probe.rate_per_s for probe in probes)
        return f"No rate holds: not even {tried:,.1f}/s did ({found.ceiling.reason if found.ceiling else ''})."
    above = "nothing above was tried" if found.ceiling is None else f"{found.ceiling.rate_per_s:,.1f}/s does not hold"
    reason = f"at 99 % confidence; {found.best.reason}"
    return f"Highest rate that holds: {found.best.rate_per_s:,.1f}/s ({reason}). {above.capitalize()}."


def search_cases(
    found: Found | None, problem: str, exit_code: int, objectives: Sequence[Threshold], statement: str
) -> list[Case]:
    """Whether the generator kept up, the search ended, and a rate was found."""
    limited, ended = exit_code == EXIT_GENERATOR, found is not None
    kept = f"a rate keeps {' and '.join(map(str, objectives))}"
    return [
        Case(GENERATOR, problem if limited else ""),
        Case("the search ended", "" if ended or limited else problem, problem if limited else ""),
        Case(kept, statement if found and not found.best else "", "" if ended else statement),
    ]


def search_document(
    found: Found | None, probes: Sequence[Probe], problem: str, servers: SearchServers
) -> dict[str, Any]:  # for JSON
    """The same for programs."""
    best = found.best if found else None
    ceiling = found.ceiling if found else None
    return {
        "rate_per_s": best.rate_per_s if best else None,
        "does_not_hold_per_s": ceiling.rate_per_s if ceiling else None,
        "problem": problem,
        "alone": servers.alone.as_document() if servers.alone else None,
        "probes": [
            {**asdict(probe), **watched.as_document()}
            for probe, (_, watched) in zip(probes, servers.probes, strict=True)
        ],
        "gave_in": servers.gave_in(found),
        "server_notes": servers.notes(found),
    }
