"""The outcome of a search for the highest rate: the result, each trial and the server's metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.searching import Found, Probe
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.server_columns import changes
from tpuserve_loadtests.monitoring.watched import Watched

if TYPE_CHECKING:
    from tpuserve_loadtests.monitoring.energy import EnergyFound

_Try: TypeAlias = tuple[Probe, Watched]


@dataclass
class SearchServers:
    """The server's metrics during a search: for one user `alone`, and for each trial in order."""

    alone: Watched | None = None
    probes: list[_Try] = field(default_factory=list)

    def rows(self, found: Found | None) -> list[tuple[str, Watched]]:
        """Return rows that show the bottleneck: one user alone, the highest rate that holds, the lowest that fails."""
        held, failed = self._around(found)
        return [
            *([(str(self.alone.runs[0].load), self.alone)] if self.alone else []),
            *([(f"{held[0].rate_per_s:,.1f}/s holds", held[1])] if held else []),
            *([(f"{failed[0].rate_per_s:,.1f}/s fails", failed[1])] if failed else []),
        ]

    def bottleneck(self, found: Found | None) -> str:
        """Return the changes from one user alone to the lowest failing rate, or an empty string if they are unknown."""
        _, failed = self._around(found)
        if self.alone is None or failed is None:
            return ""
        probe, watched = failed
        changed = changes(self.alone, watched)
        return f"{probe.rate_per_s:,.1f}/s compared with {self.alone.runs[0].load}: {changed}" if changed else ""

    def notes(self, found: Found | None, known_note: str = "") -> list[str]:
        """Return the distinct notes on the rows, except the argument."""
        found_notes = dict.fromkeys(watched.note for _, watched in self.rows(found))
        return [note for note in found_notes if note not in ("", known_note)]

    def _around(self, found: Found | None) -> tuple[_Try | None, _Try | None]:
        """Return the trials of the highest rate that holds and the lowest higher rate that fails.

        An unfinished search has no result, so its trials determine both.
        """
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
    """The outcome of a search. `found` is None if the search did not end, for the reason in `problem`.

    `exit_code` is the code for that reason. `servers` holds the server's metrics for one user alone and for each of the
    `probes`. `rows` is the mean number of rows per request. `price` is that of the server's machine, if known.
    """

    found: Found | None
    probes: Sequence[tuple[Probe, Measured]]
    servers: SearchServers
    problem: str = ""
    exit_code: int = 0
    rows: float = 1.0
    price: Price | None = None

    @property
    def spendings(self) -> list[Spending | None]:
        """The cost and the energy of each trial, in order, or None for a rate that does not hold.

        Such a trial may end early, while the responses to its warm-up still arrive.
        """
        unknown: list[EnergyFound] = [None] * len(self.probes)
        energies = [watched.energy for _, watched in self.servers.probes] or unknown
        return [
            Spending(measured.rate_per_s, self.rows, self.price, energy) if probe.holds else None
            for (probe, measured), energy in zip(self.probes, energies, strict=True)
        ]

    @property
    def spending(self) -> Spending | None:
        """The cost and the energy at the highest rate that holds, from its last trial, or None without such a rate."""
        best = self.found.best if self.found else None
        found = [
            spending
            for (probe, _), spending in zip(self.probes, self.spendings, strict=True)
            if best is not None and probe.rate_per_s == best.rate_per_s
        ]
        return found[-1] if found else None

    @property
    def runs(self) -> list[Measured]:
        """All loads: one user alone, then the trials."""
        alone = self.servers.alone.runs if self.servers.alone is not None else ()
        return [*alone, *(measured for _, measured in self.probes)]

    @property
    def statement(self) -> str:
        """The result in words, with its confidence."""
        found, problem, probes = self.found, self.problem, [probe for probe, _ in self.probes]
        if found is None:
            held = max((probe.rate_per_s for probe in probes if probe.holds), default=None)
            so_far = "no rate was shown to hold" if held is None else f"{held:,.1f}/s was the highest rate that held"
            return f"The search stopped early: {problem}. Until then, {so_far}."
        if found.best is None and not probes:
            return f"No rate holds: a single user already misses the objective, with {problem}."
        if found.best is None:
            tried = min(probe.rate_per_s for probe in probes)
            return f"No rate holds: the lowest was {tried:,.1f}/s ({found.ceiling.reason if found.ceiling else ''})."
        above = (
            "no higher rate was tried" if found.ceiling is None else f"{found.ceiling.rate_per_s:,.1f}/s does not hold"
        )
        reason = f"at 99 % confidence; {found.best.reason}"
        return f"Highest rate that holds: {found.best.rate_per_s:,.1f}/s ({reason}). {above.capitalize()}."
