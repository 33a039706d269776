"""The outcome of a search for the highest rate: the result, each try, and the server's metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.server_columns import changes
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


@dataclass(frozen=True, slots=True)
class Searched:
    """`found` is None where the search did not end; `problem` says why, `exit_code` how bad that is.

    `servers`: what the server told, of one user alone and of each of the `probes`.
    """

    found: Found | None
    probes: Sequence[tuple[Probe, Measured]]
    servers: SearchServers
    problem: str = ""
    exit_code: int = 0

    @property
    def runs(self) -> list[Measured]:
        """All loads: one user alone, and then the tries."""
        alone = self.servers.alone.runs if self.servers.alone is not None else ()
        return [*alone, *(measured for _, measured in self.probes)]

    @property
    def statement(self) -> str:
        """What may be said, and how sure it is."""
        found, problem, probes = self.found, self.problem, [probe for probe, _ in self.probes]
        if found is None:
            held = max((probe.rate_per_s for probe in probes if probe.holds), default=None)
            so_far = "no rate was shown to hold" if held is None else f"{held:,.1f}/s was the highest that held"
            return f"The search did not end: {problem}. Until then {so_far}."
        if found.best is None and not probes:
            return f"No rate holds: even a user alone, who waits for nobody, gets {problem}."
        if found.best is None:
            tried = min(probe.rate_per_s for probe in probes)
            return f"No rate holds: not even {tried:,.1f}/s did ({found.ceiling.reason if found.ceiling else ''})."
        above = (
            "nothing above was tried" if found.ceiling is None else f"{found.ceiling.rate_per_s:,.1f}/s does not hold"
        )
        reason = f"at 99 % confidence; {found.best.reason}"
        return f"Highest rate that holds: {found.best.rate_per_s:,.1f}/s ({reason}). {above.capitalize()}."
