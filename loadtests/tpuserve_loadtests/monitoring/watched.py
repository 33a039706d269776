"""Runs with a watched server, which combine the client's and the server's view of the same requests."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.energy import EnergyFound, join_energies
from tpuserve_loadtests.monitoring.latency_parts import Part, counts_differ, latency_parts
from tpuserve_loadtests.monitoring.process_use import ProcessUse, join_uses
from tpuserve_loadtests.monitoring.server_side import Seen, ServerSide, Stretch, draw_server_side


@dataclass(frozen=True, slots=True)
class Watched:
    """One run, or several of the same load. `server` is None without metrics, and `note` may give the reason.

    `parts` is the time breakdown of a request, and empty if it is unknown. `use` is the CPU and memory of the server's
    processes, or None without `--server-pid`. `energy` is that of this machine, or the reason why it is unknown. It is
    None if the server runs on another machine.
    """

    runs: tuple[Measured, ...]
    stretches: tuple[Stretch, ...]
    server: ServerSide | None
    parts: tuple[Part, ...]
    note: str
    use: ProcessUse | None = None
    energy: EnergyFound = None

    @classmethod
    def of(cls, measured: Measured, seen: Seen) -> Self:
        """Return a single run."""
        stretches = () if seen.stretch is None else (seen.stretch,)
        return cls._join((measured,), stretches, seen.note, seen.use, seen.energy)

    @classmethod
    def together(cls, watched: Sequence["Watched"]) -> Self:
        """Combine runs. If only some have server metrics, use only these runs."""
        known = [one for one in watched if one.server is not None]
        runs = tuple(measured for one in known or watched for measured in one.runs)
        note = next((one.note for one in watched if one.note), "")
        if known and len(known) < len(watched):
            note = f"the server's metrics cover {len(known)} of {len(watched)} runs: {note}"
        use = join_uses([one.use for one in watched if one.use is not None])
        energy = join_energies([one.energy for one in watched])
        return cls._join(runs, tuple(stretch for one in known for stretch in one.stretches), note, use, energy)

    @classmethod
    def _join(
        cls,
        runs: tuple[Measured, ...],
        stretches: tuple[Stretch, ...],
        note: str,
        use: ProcessUse | None,
        energy: EnergyFound,
    ) -> Self:
        if not stretches:
            return cls(runs, stretches, None, (), note, use, energy)
        server = draw_server_side(stretches)
        note = note or counts_differ(runs, server)
        return cls(runs, stretches, server, latency_parts(runs, server), note, use, energy)

    @property
    def latency_ms(self) -> float | None:
        """The client's mean latency, or None if the parts are unknown."""
        return sum(part.mean_ms for part in self.parts) if self.parts else None

    def condensed(self) -> "Watched":
        """Return the runs without their windows, to save memory."""
        return replace(self, runs=tuple(measured.condensed() for measured in self.runs))

    def as_document(self) -> dict[str, Any]:  # plain values of several types
        """Return a JSON document with `server`, `server_process` and `latency_parts`, in milliseconds."""
        return {
            "latency_parts": [asdict(part) for part in self.parts],
            "server": None if self.server is None else self.server.as_document(),
            "server_process": None if self.use is None else self.use.as_document(),
        }
