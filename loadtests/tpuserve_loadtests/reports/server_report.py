"""What the server said of itself during a run, as people read it: a table of where the time went, and a few lines."""

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpuserve_loadtests.server_side.latency_parts import EXECUTION, QUEUE, Part
from tpuserve_loadtests.server_side.server_side import Phase, ServerSide
from tpuserve_loadtests.server_side.watched import Watched

MIB: Final = 2**20
# Which of the server's histograms tells more of a part than its mean.
_PHASES = {QUEUE: "queue wait", EXECUTION: "execution"}


def print_server(watched: Watched, console: Console) -> None:
    """Print the table, if the parts are known, and what the server did; nothing where it does not tell."""
    if watched.server is None:
        return
    if watched.parts:
        console.print(_table(watched.server, watched.parts))
    for line in server_lines(watched.server):
        console.print(f"  server: {escape(line)}", soft_wrap=True, highlight=False)


def server_lines(server: ServerSide) -> list[str]:
    """What the server did besides answering, in words; only what it tells."""
    lines = []
    if server.batch_rows is not None:
        padding = "" if server.padding_share is None else f", {100 * server.padding_share:.3g} % padding"
        executing = "" if server.executing is None else f"; {server.executing:.2f} batches executing on average"
        lines.append(f"batches of {server.batch_rows:.3g} rows{padding}{executing}")
    lines += [f"device {device} busy {100 * share:.3g} % of the time" for device, share in server.busy.items()]
    process = []
    if server.cpu_cores is not None:
        process.append(f"{server.cpu_cores:.2f} cores")
    if server.peak_memory_bytes is not None:
        process.append(f"{server.peak_memory_bytes / MIB:,.0f} MiB of memory at most")
    lines += [", ".join(process)] if process else []
    lines += [f"refused or dropped: {_counts(server.refused)}"] if server.refused else []
    return lines


def _table(server: ServerSide, parts: tuple[Part, ...]) -> Table:
    table = Table(title="Where the time of a request went", title_justify="left")
    table.add_column("part")
    for heading in ("mean ms", "share", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in parts:
        phase = server.phase(_PHASES.get(part.name, ""))
        table.add_row(part.name, f"{part.mean_ms:.2f}", f"{100 * part.share:.0f} %", *_percentiles(phase))
    table.add_section()
    table.add_row("latency", f"{sum(part.mean_ms for part in parts):.2f}", style="bold")
    return table


def _percentiles(phase: Phase | None) -> tuple[str, str]:
    if phase is None:
        return "", ""
    p50, p99 = (f"~{ms:.2f}" if ms > phase.least_ms else f"<{phase.least_ms:g}" for ms in (phase.p50_ms, phase.p99_ms))
    return p50, p99


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
