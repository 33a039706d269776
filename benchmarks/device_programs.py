"""Device programs through gRPC beside a bare loop of the same program, and how soon they are up. Linux only.

Run from anywhere: `.venv/bin/python benchmarks/device_programs.py BASE_PATH`, where version 1 has device programs for
its default signature, with one input. Everything is started here, on loopback, and stopped again whatever happens.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console

# Run by path, so that it works from anywhere: the workspace's root is not on the path then.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load_tools import ToolFailed, framed, missing_tools, run_h2load
from benchmarks.measurement import predict_request
from benchmarks.process_tree import ServerDied, exit_on_sigterm
from benchmarks.program_loop import MANIFEST
from benchmarks.resnet import loop_process
from benchmarks.targets import GRPC_PATH, model_server

NAME = "model"
WHOLE_IN_FLIGHT = 4
GOAL_OF_LOOP, GOAL_OF_COLD, MAX_RSS_MB = 0.95, 0.5, 600


@dataclass(frozen=True, slots=True)
class Start:
    """From the command to readiness, and what the whole process tree held then."""

    seconds: float
    rss_mb: float


def start(base: Path, cache: Path, scratch: Path) -> Start:
    """Start a server, and stop it as soon as it is ready."""
    began_s = time.monotonic()
    flags = ("--device=cpu", f"--compilation_cache_dir={cache}")
    with model_server("python", base, scratch, *flags, name=NAME) as server:
        return Start(time.monotonic() - began_s, server["grpc"].tree.memory().rss_mb)


def rates(
    base: Path, rows: int, of_request: int, rounds: int, seconds: int, scratch: Path
) -> tuple[list[float], list[float]]:
    """Rows a second of the server, with as many in flight as a batch has, and of the loop, in turns.

    Of requests that are whole batches, several are in flight.
    """
    manifest = json.loads((base / "1" / MANIFEST).read_text())
    ((name, tensor),) = manifest["signatures"]["serving_default"]["inputs"].items()
    row = np.random.default_rng(0).random((of_request, *tensor["shape"][1:])).astype(tensor["dtype"])
    body = scratch / "row.grpc"
    body.write_bytes(framed(predict_request(NAME, {name: row})))
    # The same batch as the loop's: each leaves full.
    flags = ("--device=cpu", f"--max_batch_size={rows}", "--batch_timeout_micros=100000")
    in_flight = rows // of_request if of_request < rows else WHOLE_IN_FLIGHT
    served, looped = [], []
    with (
        model_server("envoy", base, scratch, *flags, name=NAME) as server,
        loop_process("program_loop.py", str(base / "1")) as loop,
    ):
        for _ in range(rounds):
            port = server["grpc"].port
            load = run_h2load(port, GRPC_PATH, body, in_flight=in_flight, duration_s=seconds, scratch=scratch)
            served.append(load.rate_per_s * of_request)
            looped.append(loop.rate(rows, seconds))
    return served, looped


@click.command(epilog="Exit codes: 0 measured (goals may be missed), 1 something did not work.")
@click.argument("base", type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=8, show_default=True, help="Rows of a batch, which a program must have.")
@click.option("--of-request", default=1, show_default=True, help="Rows of a request.")
@click.option("--rounds", default=3, show_default=True, help="Turns of server and loop, of which the median counts.")
@click.option("--seconds", default=10, show_default=True, help="Seconds a turn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, progress on stderr.")
def main(base: Path, rows: int, of_request: int, rounds: int, seconds: int, as_json: bool) -> None:
    """Start twice, without and with compiled programs in the cache; then compare with a loop."""
    exit_on_sigterm()
    console = Console(stderr=as_json)
    if missing := missing_tools():
        raise click.ClickException(f"h2load is needed: apt-get install {' '.join(missing)}")
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-programs-") as folder:
            scratch = Path(folder)
            cold, warm = (start(base.absolute(), scratch / "compiled", scratch) for _ in range(2))
            served, looped = rates(base.absolute(), rows, of_request, rounds, seconds, scratch)
    except (ServerDied, ToolFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    ratio = statistics.median(served) / statistics.median(looped)
    console.print(
        f"ready after {cold.seconds:.1f} s, with compiled programs {warm.seconds:.1f} s: "
        f"{warm.seconds / cold.seconds:.2f} (goal ≤ {GOAL_OF_COLD}); {warm.rss_mb:.0f} MB (goal ≤ {MAX_RSS_MB})"
    )
    console.print(
        f"batches of {rows}: {statistics.median(served):.1f} rows/s served, {statistics.median(looped):.1f} in the "
        f"loop: {ratio:.3f} (goal ≥ {GOAL_OF_LOOP})"
    )
    if as_json:
        report = {"cold": asdict(cold), "warm": asdict(warm), "served": served, "loop": looped, "ratio": ratio}
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
