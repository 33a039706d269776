"""Record a profile of a server under load for TensorBoard, and print a summary of it.

    python examples/profile/run.py --out traces
    python examples/profile/run.py --out traces --device-programs

The first command runs the digits model with TensorFlow, the second one its device programs with PJRT, on the CPU. Both
traces then appear in one TensorBoard: docs/how-to/serve/profile.md.
"""

import argparse
import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at import.

import tpuserve_server  # noqa: E402 - the repository is no package
from examples.example import load_example  # noqa: E402
from examples.profile.summary import Summary, read_summary  # noqa: E402
from examples.run_all import export  # noqa: E402
from examples.trained import train_apart  # noqa: E402
from tpuserve_client import Client  # noqa: E402

MODEL = "digits"
CLIENTS = 6
# Rows of a request, at random. Batches of several requests then differ in size, and most need padding.
MAX_ROWS = 11
MOST_OPERATIONS = 8
# A server records for at most a minute.
LEAST_S, MOST_S = 0.1, 60.0
# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 120


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".demo" / "traces", help="Log directory for TensorBoard.")
    parser.add_argument("--device-programs", action="store_true", help="Run device programs with PJRT (extra tpu).")
    parser.add_argument("--batch-sizes", default="1,8,32", help="Sizes to which batches are padded (default: 1,8,32).")
    parser.add_argument("--seconds", type=duration_s, default=2.0, help="Duration of the profile (default: 2).")
    arguments = parser.parse_args()
    # A directory for each runtime, because TensorBoard lists traces by their directories.
    out = arguments.out / ("pjrt" if arguments.device_programs else "tensorflow")
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    work = out / "model"
    console.print(f"Training and exporting {MODEL}")
    models = prepare(work, arguments.batch_sizes, device_programs=arguments.device_programs)
    device = "cpu" if arguments.device_programs else "auto"
    with tpuserve_server.start(models, log_path=work / "server.log", progress=False, device=device) as server:
        console.print(f"Recording {arguments.seconds:g} s of a server with {CLIENTS} clients")
        with load(server.grpc_address):
            trace = record(server.grpc_address, out, arguments.seconds)
    print_summary(console, read_summary(trace))
    console.print(f"Trace: {trace}\nTo see it: tensorboard --logdir={arguments.out}", soft_wrap=True)


def duration_s(text: str) -> float:
    """Return the duration that a user wrote. Raises ArgumentTypeError beyond the limits of a session."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_S <= seconds <= MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {LEAST_S:g} to {MOST_S:g}")
    return seconds


def prepare(folder: Path, batch_sizes: str, *, device_programs: bool) -> dict[str, Path]:
    """Delete `folder`, train and export the model into it, and return its base path by name. Blocks for seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    example = load_example(MODEL)
    trained = train_apart(MODEL, folder, folder / "train.log")
    options = (*example.export_options, "--batch-sizes", batch_sizes, *(["--device-programs"] * device_programs))
    export(trained.source, options, folder / "models", folder / "export.log")
    return {MODEL: folder / "models"}


@contextlib.contextmanager
def load(address: str) -> Iterator[None]:
    """Send requests from several clients during the body. Raises the error of a client at the end."""
    ended = threading.Event()

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        with Client(address) as client:
            while not ended.is_set():
                rows = random.integers(1, MAX_ROWS, endpoint=True)
                client.predict(MODEL, {"image": random.random((rows, 8, 8, 1), np.float32)})

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(run, seed) for seed in range(CLIENTS)]
        try:
            yield
        finally:
            ended.set()
    for client in clients:
        client.result()


def record(address: str, out: Path, seconds: float) -> Path:
    """Record a profile into the log directory `out`, and return its file. Blocks for the duration."""
    import tensorflow as tf

    known = set(out.rglob("*.xplane.pb"))
    tf.profiler.experimental.client.trace(f"grpc://{address}", str(out), round(seconds * 1000))
    (trace,) = set(out.rglob("*.xplane.pb")) - known
    return trace


def print_summary(console: Console, summary: Summary) -> None:
    """Print a table of the batches and one of the operations."""
    table = Table(box=box.SIMPLE_HEAD, title="Batches, and the time of the device thread")
    columns = ("batches", "requests each", "rows each", "padding", "batch", "results", "between")
    table.add_column("model")
    for column in columns:
        table.add_column(column, justify="right")
    for model, found in summary.batches.items():
        total_ms = found.batch_ms + found.results_ms + found.between_ms
        shares = (f"{ms / total_ms:.0%}" for ms in (found.batch_ms, found.results_ms, found.between_ms))
        sizes = (f"{total / found.count:.1f}" for total in (found.requests, found.rows))
        table.add_row(model, str(found.count), *sizes, f"{found.padding:.0%}", *shares)
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, title="Slowest operations")
    table.add_column("operation")
    for column in ("runs", "ms", "share"):
        table.add_column(column, justify="right")
    total_ms = sum(summary.operation_ms.values())
    slowest = sorted(summary.operation_ms.items(), key=lambda item: item[1], reverse=True)
    for name, ms in slowest[:MOST_OPERATIONS]:
        table.add_row(name, str(summary.operation_runs[name]), f"{ms:.1f}", f"{ms / total_ms:.0%}")
    console.print(table)


if __name__ == "__main__":
    main()
