"""Runs with a watched server: the time breakdown of a request, and columns and changes over several runs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.energy import EnergyFound, join_energies
from tpuserve_loadtests.monitoring.process_use import ProcessUse, join_uses
from tpuserve_loadtests.monitoring.server_side import Seen, ServerSide, Stretch, draw_server_side
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

LATE: Final = "sent late by the generator"
NETWORK: Final = "network, connections and client"
QUEUE: Final = "queue wait"
EXECUTION: Final = "execution, with stacking and padding"
ELSEWHERE: Final = "elsewhere in the server"

# Relative tolerance for differences in request counts. Replicas may share an address, and other clients may send
# requests.
_TOLERANCE = 0.05
# A response cache that answers a smaller share changes no figure.
_LEAST_CACHED: Final = 0.01
# Absolute tolerance per run, for instance for warm-up requests that the server answers after the warm-up.
_IN_FLIGHT = 100


@dataclass(frozen=True, slots=True)
class Part:
    """Milliseconds of a request's mean latency, and their share of it."""

    name: str
    mean_ms: float
    share: float


def latency_parts(runs: Sequence[Measured], server: ServerSide) -> tuple[Part, ...]:
    """Return the parts of the client's mean latency in chronological order, or none if they are unknown.

    The server's parts are means over the same periods. The function never compares the two clocks.
    """
    mean_us = LatencyHistogram.merged(measured.total.histogram for measured in runs).mean_us()
    request = server.phase("request")
    if mean_us is None or request is None:
        return ()
    client_ms = mean_us / 1000
    late_us = LatencyHistogram.merged(measured.recorder.lag for measured in runs).mean_us()
    late_ms = min(late_us / 1000, client_ms) if late_us is not None else 0.0
    queue = server.phase("queue wait")
    queue_ms = queue.mean_ms if queue is not None else 0.0
    execution_ms = server.execution_ms or 0.0
    named = [
        (LATE, late_ms),
        (NETWORK, client_ms - late_ms - request.mean_ms),
        (QUEUE, queue_ms),
        (EXECUTION, execution_ms),
        (ELSEWHERE, request.mean_ms - queue_ms - execution_ms),
    ]
    # Means over slightly different requests can differ a little, so omit parts that would be negative.
    return tuple(Part(name, ms, ms / client_ms) for name, ms in named if ms > 0)


def cached_responses(server: ServerSide) -> str:
    """Return a note if the server's response cache answered requests, or an empty string."""
    if not server.cached_share or server.cached_share < _LEAST_CACHED:
        return ""
    return (
        f"{100 * server.cached_share:.3g} % of the answers came from the server's response cache, and the figures are "
        "not the model's: send distinct requests (--recorded, --input), or turn off the cache"
    )


def counts_differ(runs: Sequence[Measured], server: ServerSide) -> str:
    """Return a note if the server's request count differs from the client's, or an empty string."""
    sent, responses = sum(measured.total.requests for measured in runs), sum(server.answers.values())
    # A failed request may or may not have reached the server.
    least = sent - sum(measured.total.failures for measured in runs)
    tolerance = _TOLERANCE * sent + _IN_FLIGHT * len(runs)
    if responses > sent + tolerance:
        return (
            f"the server answered {counted(responses, 'request')}, but this run sent {sent:,}: other clients use the "
            "server, too"
        )
    if responses < least - tolerance:
        return (
            f"the server answered {responses:,} of {counted(least, 'request')}: the address may have several servers, "
            "and the metrics are from one of them"
        )
    return ""


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
        note = note or "; ".join(filter(None, (counts_differ(runs, server), cached_responses(server))))
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
            "server": None if self.server is None else asdict(self.server),
            "server_process": None if self.use is None else asdict(self.use),
        }


# A summary of changes omits parts below this share of the total latency change.
_LEAST_SHARE: Final = 0.05
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A column with a figure for each run, or None if the server does not report it.

    Narrow tables omit a `spare` column.
    """

    heading: str
    figure: Callable[[Watched], float | None]
    written: Callable[[float], str] = "{:.2f}".format
    spare: bool = False

    def cell(self, watched: Watched) -> str:
        value = self.figure(watched)
        return "-" if value is None else self.written(value)


def part_ms(watched: Watched, *names: str) -> float | None:
    """Return the mean milliseconds of a request's latency in these parts, or None if the parts are unknown."""
    return sum(part.mean_ms for part in watched.parts if part.name in names) if watched.parts else None


def _part(heading: str, *names: str) -> ServerColumn:
    return ServerColumn(heading, lambda watched: part_ms(watched, *names))


def _server_column(
    heading: str, figure: Callable[[ServerSide], float | None], written: Callable[[float], str], *, spare: bool = False
) -> ServerColumn:
    return ServerColumn(
        heading, lambda watched: None if watched.server is None else figure(watched.server), written, spare
    )


PARTS: Final = (
    _part("network", LATE, NETWORK),
    _part("queue", QUEUE),
    _part("execution", EXECUTION),
    _part("other", ELSEWHERE),
)
BATCH_ROWS: Final = _server_column("rows", lambda server: server.batch_rows, "{:.3g}".format)
PADDING: Final = _server_column("padding", lambda server: server.padding_share, lambda share: f"{100 * share:.3g} %")
CORES: Final = _server_column("cores", lambda server: server.cpu_cores, "{:.2f}".format)
REFUSED: Final = _server_column("refused", lambda server: float(sum(server.refused.values())) or None, "{:,.0f}".format)
_COLUMNS: Final = (
    *PARTS,
    ServerColumn("total", lambda watched: watched.latency_ms, spare=True),
    BATCH_ROWS,
    PADDING,
    _server_column("executing", lambda server: server.executing, "{:.2f}".format, spare=True),
    CORES,
    REFUSED,
    ServerColumn("pid cores", lambda watched: None if watched.use is None else watched.use.cpu_cores),
    ServerColumn(
        "pid MiB",
        lambda watched: None if watched.use is None else watched.use.peak_memory_bytes / _MIB,
        "{:,.0f}".format,
    ),
)


def server_columns(runs: Sequence[Watched]) -> list[ServerColumn]:
    return [column for column in _COLUMNS if any(column.figure(watched) is not None for watched in runs)]


def changes(before: Watched, after: Watched) -> str:
    """Return the change of latency and of its parts, largest first, or an empty string if they are unknown."""
    if before.latency_ms is None or after.latency_ms is None:
        return ""
    change = after.latency_ms - before.latency_ms
    parts = [(column.heading, column.figure(after) or 0.0, column.figure(before) or 0.0) for column in PARTS]
    ranked = sorted(((name, b - a) for name, b, a in parts), key=lambda part: -abs(part[1]))
    listed = [f"{name} {ms:+.2f}" for name, ms in ranked if abs(ms) >= _LEAST_SHARE * abs(change)]
    return f"mean latency {change:+.2f} ms: {', '.join(listed)}{_batches(before, after)}" if listed else ""


def _batches(before: Watched, after: Watched) -> str:
    rows, others = BATCH_ROWS.figure(after), BATCH_ROWS.figure(before)
    if rows is None or others is None or abs(rows - others) < _LEAST_SHARE * others:
        return ""
    return f"; batches of {BATCH_ROWS.cell(after)} rows instead of {BATCH_ROWS.cell(before)}"
