"""Columns for the server's metrics in several runs: time breakdown, batches and CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.monitoring.latency_parts import ELSEWHERE, EXECUTION, LATE, NETWORK, QUEUE
from tpuserve_loadtests.monitoring.server_side import ServerSide
from tpuserve_loadtests.monitoring.watched import Watched

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
        """Return the figure as text."""
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
    """Return the columns with a figure in any run."""
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
    """Return the change of the mean batch size, or an empty string if it is small."""
    rows, others = BATCH_ROWS.figure(after), BATCH_ROWS.figure(before)
    if rows is None or others is None or abs(rows - others) < _LEAST_SHARE * others:
        return ""
    return f"; batches of {BATCH_ROWS.cell(after)} rows instead of {BATCH_ROWS.cell(before)}"
