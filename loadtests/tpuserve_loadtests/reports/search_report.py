"""What a search found: each rate as it was tried, and the statement at the end."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.searching import Found, Probe


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


def search_document(found: Found | None, probes: Sequence[Probe], problem: str) -> dict[str, Any]:  # for JSON
    """The same for programs."""
    best = found.best if found else None
    ceiling = found.ceiling if found else None
    return {
        "rate_per_s": best.rate_per_s if best else None,
        "does_not_hold_per_s": ceiling.rate_per_s if ceiling else None,
        "problem": problem,
        "probes": [asdict(probe) for probe in probes],
    }
