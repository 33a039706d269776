"""Measure ResNet-50 through gRPC next to a bare loop over the same session, in float32 and bfloat16. Linux only.

Run: `.venv/bin/python -m benchmarks resnet`. Takes about 8 minutes, including one or two to write the model. `--model
FOLDER` keeps the model for the next run. The benchmark starts all processes on loopback, and always stops them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.devices import resnet_model
from benchmarks.harness.load_tools import ToolFailed, framed, missing_tools, run_h2load
from benchmarks.harness.measurement import predict_request
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import GRPC_PATH, ROOT, Target, model_server
from tpuserve_client import Client

IN_FLIGHT = 8
COPIES = 2
# FULL uses the same batch as the loop: the number of requests in flight equals the batch size, so each batch is full.
# By default, a batch starts when the device is free, or shortly after, to include clients that send their next request
# at once. Not all clients send it in time.
FULL, GREEDY = f"batches of {IN_FLIGHT}", "greedy, the default"
WAYS = {FULL: (f"--max_batch_size={IN_FLIGHT}", "--batch_timeout_micros=100000"), GREEDY: ()}
# The empty value of --mixed_precision means float32.
PRECISIONS = {"float32": "", "bfloat16": "bfloat16"}
GOAL_OF_LOOP, GOAL_OF_BFLOAT16 = 0.95, 1.7


@dataclass(frozen=True, slots=True)
class Rates:
    """Images per second of each round, with alternating rounds."""

    served: dict[str, list[float]]
    loop: list[float]

    def ratio(self, way: str) -> float:
        """Return the median of `served` over the median of `loop`."""
        return statistics.median(self.served[way]) / statistics.median(self.loop)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement between the outputs of the two precisions."""

    pictures: int
    top_1: float
    # Share of correctly classified images, by precision.
    right: dict[str, float]
    largest_difference: float


class SessionLoop:
    """A loop like benchmarks/devices/session_loop.py in a separate process, which sleeps between rounds."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def rate(self, rows: int, seconds: float) -> float:
        """Return the rows per second with batches of `rows`."""
        return float(self._exchange(f"{rows} {seconds}"))

    def figures(self, rows: int, seconds: float) -> tuple[float, ...]:
        """Return all figures of a program that prints several."""
        return tuple(map(float, self._exchange(f"{rows} {seconds}").split()))

    def wait_until_ready(self) -> None:
        """Block until the version is loaded."""
        self._exchange(None)

    def _exchange(self, line: str | None) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise ServerDied("The session loop exited.")
        return answer


@contextmanager
def loop_process(program: str, *arguments: str) -> Iterator[SessionLoop]:
    """Run a loop program for the duration of the block: a file of benchmarks/devices, or an absolute path."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        loop = SessionLoop(process)
        loop.wait_until_ready()
        yield loop
    finally:
        process.kill()
        process.communicate()


def measure(base: Path, precision: str, rounds: int, seconds: int, scratch: Path) -> tuple[Rates, resnet_model.Floats]:
    """Return the rates of one precision, and the server's outputs for the noisy images, shape (256, 1000)."""
    body = write_body(scratch)
    with ExitStack() as running:
        servers = {
            way: running.enter_context(
                model_server(
                    base, scratch, f"--mixed_precision={PRECISIONS[precision]}", *flags, name=resnet_model.NAME
                )
            )["grpc"]
            for way, flags in WAYS.items()
        }
        loop = running.enter_context(loop_process("session_loop.py", str(base / "1"), precision))
        answers = classify(servers[FULL])
        rates = Rates({way: [] for way in WAYS}, [])
        for _ in range(rounds):
            for way, server in servers.items():
                load = run_h2load(
                    server.port, GRPC_PATH, body, in_flight=IN_FLIGHT, duration_s=seconds, scratch=scratch
                )
                rates.served[way].append(load.rate_per_s)
            rates.loop.append(loop.rate(IN_FLIGHT, seconds))
        return rates, answers


def write_body(scratch: Path) -> Path:
    """Write an image as a framed gRPC request of 602 KB."""
    message = predict_request(resnet_model.NAME, {resnet_model.INPUT: resnet_model.images(1)})
    path = scratch / "picture.grpc"
    path.write_bytes(framed(message))
    return path


def classify(target: Target) -> resnet_model.Floats:
    """Return the server's outputs for the noisy images. A real client sends eight images per request."""
    pictures = resnet_model.disturbed(COPIES)
    with Client(f"127.0.0.1:{target.port}", timeout_s=120) as client:
        answers = [
            client.predict(resnet_model.NAME, {resnet_model.INPUT: pictures[start : start + IN_FLIGHT]})
            for start in range(0, len(pictures), IN_FLIGHT)
        ]
    return np.concatenate([answer[resnet_model.OUTPUT] for answer in answers])


def compare(answers: dict[str, resnet_model.Floats]) -> Agreement:
    """Compare the probabilities of the two precisions for the noisy images."""
    classes = {precision: each.argmax(axis=1) for precision, each in answers.items()}
    one, other = (answers[precision] for precision in PRECISIONS)
    truth = np.tile(np.arange(resnet_model.KNOWN), COPIES)
    return Agreement(
        pictures=len(one),
        top_1=float((classes["float32"] == classes["bfloat16"]).mean()),
        right={precision: float((each == truth).mean()) for precision, each in classes.items()},
        largest_difference=float(np.abs(one - other).max()),
    )


@click.command(epilog="Exit codes: 0 success (the table shows missed goals), 1 a step failed.")
@click.option("--rounds", default=3, show_default=True, help="Number of rounds. The median counts.")
@click.option("--seconds", default=15, show_default=True, help="Seconds per round.")
@click.option("--model", type=click.Path(path_type=Path), help="Directory that keeps the model between runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(rounds: int, seconds: int, model: Path | None, as_json: bool) -> None:
    """Serve ResNet-50 and compare it with its own session, then repeat both with bfloat16."""
    exit_on_sigterm()
    console = Console(stderr=as_json)
    if missing := missing_tools():
        raise click.ClickException(f"This benchmark needs h2load. Run: apt-get install {' '.join(missing)}")
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-resnet-") as folder:
            report = run(model or Path(folder), Path(folder), rounds, seconds, console)
    except (ServerDied, ToolFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print(json.dumps(report, indent=2))


def run(model: Path, scratch: Path, rounds: int, seconds: int, console: Console) -> dict[str, object]:
    """Measure both precisions, print the table, and return the results."""
    base = model / resnet_model.NAME
    if not (base / "1").exists():
        console.print("exporting ResNet-50")
        write_model(model, scratch)
    rates, answers = {}, {}
    for precision in PRECISIONS:
        console.print(f"measuring {precision}")
        rates[precision], answers[precision] = measure(base, precision, rounds, seconds, scratch)
    agreement = compare(answers)
    gain = statistics.median(rates["bfloat16"].served[FULL]) / statistics.median(rates["float32"].served[FULL])
    show(rates, agreement, gain, console)
    loads = {
        precision: asdict(each) | {"ratio": {way: each.ratio(way) for way in WAYS}} for precision, each in rates.items()
    }
    return {"rates": loads, "bfloat16_gain": gain, "agreement": asdict(agreement)}


def write_model(folder: Path, scratch: Path) -> None:
    """Write the model below `folder` in a separate process. Raises ServerDied with the output of a failed process."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(resnet_model.__file__)), str(folder)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerDied(f"The export of the model failed:\n{(done.stdout + done.stderr)[-2000:]}")


def show(rates: dict[str, Rates], agreement: Agreement, gain: float, console: Console) -> None:
    """Print the table and the goals."""
    table = Table(title=f"ResNet-50, images/s, median of {len(rates['float32'].loop)} rounds")
    for column in (
        "precision",
        f"gRPC, {IN_FLIGHT} in flight",
        "server",
        f"session loop, batches of {IN_FLIGHT}",
        "ratio",
        "goal",
    ):
        table.add_column(column)
    for precision, each in rates.items():
        for way, served in each.served.items():
            goal = f"≥ {GOAL_OF_LOOP}" if way == FULL else ""
            loop = f"{statistics.median(each.loop):.1f}"
            table.add_row(precision, way, f"{statistics.median(served):.1f}", loop, f"{each.ratio(way):.3f}", goal)
    console.print(table)
    loops = statistics.median(rates["bfloat16"].loop) / statistics.median(rates["float32"].loop)
    console.print(
        f"Rate of bfloat16 over float32: {gain:.2f} over gRPC, {loops:.2f} in a loop (goal ≥ {GOAL_OF_BFLOAT16}). "
        f"Top-1 agreement: {agreement.top_1:.3f} of {agreement.pictures} images. Correct: "
        + ", ".join(f"{right:.3f} in {precision}" for precision, right in agreement.right.items())
        + f". Largest difference of a probability: {agreement.largest_difference:.3f}."
    )
