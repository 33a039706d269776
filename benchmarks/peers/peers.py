"""Compare tpuserve with other model servers, with the same model on the same machine, in one run. Linux only.

Run: `.venv/bin/python -m benchmarks peers [--only triton,mlserver] [--json FILE]`. 8 minutes for all servers. With
`--turns`, servers that are all up at once take turns. The benchmark starts all processes, if possible in a network with
only loopback, and always stops them.
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
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
from benchmarks.peers.rotation import Plan, Rotation, rotate
from benchmarks.peers.servers import ECHO, SUBJECTS, Subject, parent, server_program, serving, version, with_modules

DOCUMENT = ROOT / "docs/explanation/performance.md"
PICTURE = "../images/peers.svg"
# Servers that take turns by default: all servers at once would need several GB of memory.
IN_TURNS = f"{peer_report.REFERENCE},triton-c"
EPILOG = """Examples:

\b
  python -m benchmarks peers --setup-only           build the environments; later runs work offline
  python -m benchmarks peers --only tpuserve,triton --seconds 2
  python -m benchmarks peers --turns 5 --seconds 2 --before ../parent      all up at once, next to another checkout
  python -m benchmarks peers --json build/peers.json --docs
  python -m benchmarks peers --from build/peers.json --docs

Needs h2load and wrk (Debian: nghttp2-client, wrk), and gcc for Triton. KServe and Ray Serve listen on every address, so
they also need root and ip (Debian: iproute2), and are skipped otherwise. Exit codes: 0 all measured or skipped, 1
failure, 2 usage error.
"""


class _Numbers(click.ParamType[tuple[int, ...], str]):
    """Comma-separated whole numbers from 1."""

    name = "numbers"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        numbers = [word.strip() for word in value.split(",")]
        if not all(word.isdecimal() and int(word) for word in numbers):
            self.fail(f"{value!r} is not a list of whole numbers, such as 1,32.", param, ctx)
        return tuple(map(int, numbers))


@click.command(epilog=EPILOG)
@click.option("--only", help=f"Comma-separated servers to measure: {', '.join(s.name for s in SUBJECTS)}.")
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1, 60), help="Seconds per measurement.")
@click.option(
    "--turns",
    type=click.IntRange(1, 99),
    help=f"Start the servers at once ({IN_TURNS} by default), and report CPU per request over that many rounds.",
)
@click.option(
    "--in-flight", default="1,32", show_default=True, type=_Numbers(), help="Requests in flight in the turns."
)
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="CHECKOUT",
    help="Measure the server of another checkout of this repository, too, with its own .venv. Its name is parent.",
)
@click.option(
    "--compiled",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Measure this server with compiled modules, too: build/compiled/unpacked after `make compiled`.",
)
@click.option("--echo", is_flag=True, help="Measure a byte echo on the HTTP server, too. Only with --turns.")
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
    turns: int | None,
    in_flight: tuple[int, ...],
    before: Path | None,
    compiled: Path | None,
    echo: bool,
    json_file: Path | None,
    docs: bool,
    earlier: Path | None,
    setup_only: bool,
    lock: bool,
) -> None:
    """Measure rate, latency, CPU, memory and fault isolation of tpuserve and of seven other servers in turn."""
    exit_on_sigterm()
    if turns and (docs or earlier):
        raise click.UsageError("--turns excludes --docs and --from.")
    if echo and not turns:
        raise click.UsageError("--echo needs --turns.")
    subjects = _chosen(only or (IN_TURNS if turns else None), before, compiled)
    subjects += [ECHO] if echo else []
    console = Console(stderr=True, highlight=False, markup=False)
    peers = [each for each in subjects if not each.is_ours and not each.is_echo]
    needed = [] if earlier else list(dict.fromkeys(each.environment for each in peers))
    needed += [CHARTS] if docs or setup_only or lock else []
    try:
        if lock:
            _lock(needed, console)
        else:
            _set_up(needed, console)
        if lock or setup_only:
            return
        if turns:
            _take_turns(subjects, Plan(turns, seconds, in_flight), json_file, console)
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


@contextlib.contextmanager
def _model(console: Console) -> Iterator[Path]:
    """Write the model to a temporary directory, and yield the directory of its version."""
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        console.print("writing the model")
        write_model(scratch / "models" / mlp_model.INPUT, scratch)
        yield scratch / "models" / mlp_model.INPUT / str(mlp_model.VERSION)


def _check_tools() -> None:
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")


def _measure_all(subjects: Iterable[Subject], seconds: int, console: Console) -> Outcome:
    _check_tools()
    load_before = os.getloadavg()[0]
    exposed = loopback.enter()
    with _model(console) as model:
        results = tuple(_measure(subject, model, seconds, exposed, console) for subject in subjects)
    return Outcome(
        peer_outcome.today(), peer_outcome.machine(Path("/proc/cpuinfo").read_text()), load_before, seconds, results
    )


def _take_turns(subjects: Iterable[Subject], plan: Plan, json_file: Path | None, console: Console) -> None:
    _check_tools()
    load_before = os.getloadavg()[0]
    exposed = loopback.enter()
    if exposed and (public := [subject.title for subject in subjects if subject.loopback_only]):
        raise click.ClickException(f"{public[0]} listens on every address, and {exposed}.")
    with _model(console) as model, tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as directory:
        try:
            servers, turns = rotate(subjects, model, plan, Path(directory), console.print)
        except (ToolFailed, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    rotation = Rotation(
        peer_outcome.today(),
        peer_outcome.machine(Path("/proc/cpuinfo").read_text()),
        load_before,
        plan.seconds,
        servers,
        turns,
    )
    click.echo(peer_report.turns_markdown(rotation))
    if json_file:
        rotation.write(json_file)


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


def _chosen(only: str | None, before: Path | None, compiled: Path | None) -> list[Subject]:
    names = [name.strip() for name in only.split(",")] if only else [subject.name for subject in SUBJECTS]
    known = [subject.name for subject in SUBJECTS]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(
            f"Unknown server {unknown[0]!r}. The servers are {', '.join(known)}.", param_hint="--only"
        )
    chosen = [subject for subject in SUBJECTS if subject.name in names]
    if compiled is not None:
        if not (compiled / "tpuserve_server").is_dir():
            raise click.BadParameter(f"{compiled} has no server. Run `make compiled`.", param_hint="--compiled")
        chosen.append(with_modules(compiled.resolve()))
    if before is None:
        return chosen
    if not server_program(before).exists():
        raise click.BadParameter(
            f"{server_program(before)} does not exist. Run `make setup` there.", param_hint="--before"
        )
    return [parent(before.resolve()), *chosen]
