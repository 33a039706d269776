"""Compare tpuserve with other model servers, with the same model on the same machine, in one run. Linux only.

Run: `.venv/bin/python -m benchmarks peers [--only triton,mlserver] [--json FILE]`. 8 minutes for all servers. The
benchmark starts all processes, if possible in a network with only loopback, and always stops them.
"""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from benchmarks.harness import environments, loopback, mlp_model
from benchmarks.harness.environments import CHARTS, SetupFailed
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import ROOT, write_model
from benchmarks.peers import measurement as peer_measurement
from benchmarks.peers import outcome as peer_outcome
from benchmarks.peers import report as peer_report
from benchmarks.peers.outcome import Outcome, Result
from benchmarks.peers.servers import SUBJECTS, Subject, serving, version

DOCUMENT = ROOT / "docs/explanation/performance.md"
PICTURE = "../images/peers.svg"
EPILOG = """Examples:

\b
  python -m benchmarks peers --setup-only           build the environments; later runs work offline
  python -m benchmarks peers --only tpuserve-envoy,triton --seconds 2
  python -m benchmarks peers --json build/peers.json --docs
  python -m benchmarks peers --from build/peers.json --docs

Needs h2load and wrk (Debian: nghttp2-client, wrk). KServe and Ray Serve listen on every address, so they also need root
and ip (Debian: iproute2), and are skipped otherwise. Exit codes: 0 all measured or skipped, 1 failure, 2 usage error.
"""


@click.command(epilog=EPILOG)
@click.option("--only", help=f"Comma-separated servers to measure: {', '.join(s.name for s in SUBJECTS)}.")
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1, 60), help="Seconds per measurement.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this JSON file, too.")
@click.option("--docs", is_flag=True, help="Write report and chart into docs/explanation/performance.md.")
@click.option(
    "--from",
    "earlier",
    type=click.Path(path_type=Path),
    help="Report the figures of an earlier run from this JSON file.",
)
@click.option("--setup-only", is_flag=True, help="Build missing environments and exit.")
@click.option("--lock", is_flag=True, help="Update the locks of the environments and exit.")
def main(
    only: str | None,
    seconds: int,
    json_file: Path | None,
    docs: bool,
    earlier: Path | None,
    setup_only: bool,
    lock: bool,
) -> None:
    """Measure rate, latency, CPU, memory and fault isolation of tpuserve and of six other servers in turn."""
    exit_on_sigterm()
    subjects = _chosen(only)
    console = Console(stderr=True, highlight=False, markup=False)
    needed = [] if earlier else [subject.name for subject in subjects if subject.host is None]
    needed += [CHARTS] if docs or setup_only or lock else []
    try:
        if lock:
            _lock(needed, console)
        else:
            _set_up(needed, console)
        if lock or setup_only:
            return
        outcome = Outcome.read(earlier) if earlier else _measure_all(subjects, seconds, console)
        _report(outcome, json_file, docs)
    except (SetupFailed, ServerDied, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(any(result.failed for result in outcome.results))


def _lock(names: Iterable[str], console: Console) -> None:
    for name in names:
        console.print(f"pinning {name}")
        environments.lock(name)


def _set_up(names: Iterable[str], console: Console) -> None:
    for name in names:
        if not environments.is_ready(name):
            console.print(f"building {environments.ENVIRONMENTS.name}/{name}")
            environments.build(name)


def _measure_all(subjects: Iterable[Subject], seconds: int, console: Console) -> Outcome:
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    load_before = os.getloadavg()[0]
    exposed = loopback.enter()
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        console.print("writing the model")
        write_model(scratch / "models" / mlp_model.INPUT, scratch)
        model = scratch / "models" / mlp_model.INPUT / str(mlp_model.VERSION)
        results = tuple(_measure(subject, model, seconds, exposed, console) for subject in subjects)
    machine = peer_outcome.machine(Path("/proc/cpuinfo").read_text())
    return Outcome(peer_outcome.today(), machine, load_before, seconds, results)


def _measure(subject: Subject, model: Path, seconds: int, exposed: str | None, console: Console) -> Result:
    """Measure one server. An error becomes part of its result, and the run continues with the other servers."""
    result = Result(subject.name, subject.title, version(subject), subject.batching, None)
    if subject.loopback_only and exposed:
        return dataclasses.replace(result, problem=f"this server listens on every address, and {exposed}")
    console.print(f"{subject.title}: starting")
    # A short path: servers create UNIX sockets below it, whose paths are limited to 107 characters.
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as directory:
        try:
            with serving(subject, model, Path(directory)) as running:
                measured = peer_measurement.measure(
                    running, seconds, Path(directory), lambda what: console.print(f"{subject.title}: {what}")
                )
        except (ServerDied, ToolFailed, WrongAnswer) as error:
            console.print(f"{subject.title} failed: {error}")
            return dataclasses.replace(result, failed=True, problem=str(error).splitlines()[0])
    return dataclasses.replace(result, measured=measured)


def _report(outcome: Outcome, json_file: Path | None, docs: bool) -> None:
    click.echo(peer_report.markdown(outcome))
    if json_file:
        outcome.write(json_file)
    if docs:
        _draw(outcome)
        peer_report.save_between_markers(DOCUMENT, peer_report.markdown(outcome, PICTURE))


def _draw(outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        figures = Path(directory) / "peers.json"
        outcome.write(figures)
        environments.draw("draw_peers.py", figures, DOCUMENT.parent / PICTURE)


def _chosen(only: str | None) -> list[Subject]:
    names = [name.strip() for name in only.split(",")] if only else [subject.name for subject in SUBJECTS]
    known = [subject.name for subject in SUBJECTS]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(
            f"Unknown server {unknown[0]!r}. The servers are {', '.join(known)}.", param_hint="--only"
        )
    return [subject for subject in SUBJECTS if subject.name in names]
