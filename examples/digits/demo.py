"""The whole workflow on one machine: train, export, serve, predict over gRPC and REST, load-test, stop.

    make demo      # all steps, ends by itself
    make serve     # train and export if needed, then serve until Ctrl-C

Each step is a command that you can type. The demo prints it before running it.
"""

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.digits.data import HELD_OUT, Digits, load  # noqa: E402 - the repository is no package
from tpuserve_client import Client, TpuserveError  # noqa: E402

BIN = Path(sys.executable).parent
MODEL = "digits"
BATCH = 32
LOWEST_ACCURACY = 0.95
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class DemoError(Exception):
    """A step failed. The message names the step."""


def main() -> int:
    """Run the demo, or serve until Ctrl-C. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="Serve on ports 8500 and 8501 until Ctrl-C.")
    parser.add_argument("--work", type=Path, default=ROOT / ".demo", help="Directory for checkpoints and models.")
    arguments = parser.parse_args()
    # Treat SIGTERM like Ctrl-C, so that stopping the demo also stops its server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.serve:
            serve(arguments.work / "serve")
        else:
            demo(arguments.work)
    except (DemoError, TpuserveError) as error:
        print(f"\nError: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    return 0


def demo(work: Path) -> None:
    """Run all steps in a new directory."""
    started_s = time.monotonic()
    print(INTRODUCTION)
    # Delete only the demo's own files. `make serve` uses another directory and may run at the same time.
    for made in ("checkpoints", "models"):
        shutil.rmtree(work / made, ignore_errors=True)
    train_and_export(work)
    grpc_port, rest_port = free_ports()
    _, held_out = load()
    with server(work, grpc_port, rest_port) as process:
        for protocol, address in (("gRPC", f"127.0.0.1:{grpc_port}"), ("REST", f"http://127.0.0.1:{rest_port}")):
            heading(f"Predict {len(held_out.labels)} held-out digits over {protocol}")
            predict(address, held_out)
        heading("Load-test the server for 10 s")
        run("loadtest", MODEL, "--grpc", f"127.0.0.1:{grpc_port}", "--rest", f"http://127.0.0.1:{rest_port}",
            "--duration", "10s", "--generator-limit", "note")  # fmt: skip
        heading("Stop the server")
        stop(process)
    print(f"\nThe demo finished in {time.monotonic() - started_s:.0f} s.")
    print("Next: `make serve` starts this server again and prints requests to paste. README.md lists the tutorials.")


def serve(work: Path) -> None:
    """Serve the digits model, and print example requests."""
    if not any((work / "models" / MODEL).glob("[0-9]*/saved_model.pb")):
        train_and_export(work)
    _, held_out = load()
    body = work / "digit.json"
    body.write_text(json.dumps({"instances": held_out.images[:1].tolist()}))
    with server(work, 8500, 8501) as process:
        print(SNIPPETS.format(body=shortened(body), bin=shortened(BIN)))
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
        heading("Stop the server")
        stop(process)


INTRODUCTION = """\
This demo trains a small model, exports it, starts a server, sends predictions over gRPC and REST, and runs a load test.
Lines that start with $ are commands that you can type. The demo stops its server at the end."""

SNIPPETS = """
The server is ready: gRPC on 127.0.0.1:8500, REST on http://127.0.0.1:8501.
Open http://127.0.0.1:8501/console in a browser to see its load and to try requests with pictures.
Paste these commands into a second terminal in this directory. Press Ctrl-C here to stop the server.

# Classify one digit over REST
curl -d @{body} http://127.0.0.1:8501/v1/models/digits:predict

# Print the status of the model
{bin}/tpuserve status digits

# Classify eight digits over gRPC
{bin}/python - <<'EOF'
from examples.digits.data import load
from tpuserve_client import Client

_, held_out = load()
with Client("127.0.0.1:8500") as client:
    probabilities = client.predict("digits", {{"image": held_out.images[:8]}})["probabilities"]
print(probabilities.argmax(axis=1), held_out.labels[:8])
EOF
"""


def train_and_export(work: Path) -> None:
    """Train a checkpoint like on a TPU, and export it as the next version of the model."""
    heading("Train a small CNN on scikit-learn's handwritten digits")
    command(str(BIN / "python"), "examples/digits/train.py", "--out", str(work / "checkpoints"))
    heading("Export the checkpoint as a checked SavedModel, and evaluate it on held-out digits")
    run(
        "export", str(work / "checkpoints"), str(work / "models" / MODEL), "--model", "examples.digits.model:build",
        "--labelled", str(work / "checkpoints" / HELD_OUT), "--expect", f"accuracy>={LOWEST_ACCURACY}",
    )  # fmt: skip


@contextlib.contextmanager
def server(work: Path, grpc_port: int, rest_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it is ready, and always stop it at the end of the block."""
    heading("Start the server")
    arguments = [
        str(BIN / "tpuserve"), "serve", f"--model_name={MODEL}", f"--model_base_path={work / 'models' / MODEL}",
        f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1",
    ]  # fmt: skip
    show(arguments)
    # A separate session, so that the demo forwards Ctrl-C once. A second signal would stop the server without a drain.
    process = subprocess.Popen(arguments, cwd=ROOT, start_new_session=True)
    try:
        wait_until_ready(process, grpc_port)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], grpc_port: int) -> None:
    """Wait for the model. Raises DemoError at once if the server has ended."""
    with Client(f"127.0.0.1:{grpc_port}") as client:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise DemoError(f"The server exited with status {process.returncode}. Its log above gives the reason.")
            with contextlib.suppress(TpuserveError):
                client.wait_until_ready(1.0, MODEL)
                return
    raise DemoError(f"The server is not ready after {START_TIMEOUT_S:.0f} s. Its log is above.")


def predict(address: str, digits: Digits) -> None:
    """Classify every held-out digit in batches. Print the first batch and the accuracy."""
    with Client(address) as client:
        predicted = np.concatenate(
            [
                client.predict(MODEL, {"image": digits.images[start : start + BATCH]})["probabilities"].argmax(axis=1)
                for start in range(0, len(digits.images), BATCH)
            ]
        )
    right = predicted == digits.labels
    print("  label     ", " ".join(map(str, digits.labels[:BATCH])))
    print("  predicted ", " ".join(map(str, predicted[:BATCH])))
    if not right[:BATCH].all():
        print("            ", " ".join(" " if good else "^" for good in right[:BATCH]).rstrip())
    print(f"  accuracy on {len(right)} held-out digits: {right.mean():.3f}")
    if right.mean() < LOWEST_ACCURACY:
        raise DemoError(f"The accuracy is {right.mean():.3f}, expected at least {LOWEST_ACCURACY}.")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, like a container engine. The server drains and exits with 0."""
    process.send_signal(signal.SIGTERM)
    status = process.wait(STOP_TIMEOUT_S)
    print(f"  The server finished pending requests and exited with status {status}.")
    if status != 0:
        raise DemoError(f"The server exited with status {status}, expected 0.")


def free_ports() -> tuple[int, int]:
    """Return two free ports, so that the demo does not conflict with a server on the usual ones."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def run(*arguments: str) -> None:
    """Run a tpuserve command and wait for it."""
    command(str(BIN / "tpuserve"), *arguments)


def command(*arguments: str) -> None:
    """Print a command, run it and wait for it."""
    show(arguments)
    status = subprocess.run(arguments, cwd=ROOT, check=False).returncode
    if status != 0:
        name = f"{Path(arguments[0]).name} {arguments[1]}"
        raise DemoError(f"`{name}` exited with status {status}. Its output above gives the reason.")


def shortened(path: Path) -> Path:
    """Return the path relative to the current directory, or the path itself if it is elsewhere."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def show(arguments: Sequence[str]) -> None:
    """Print the command as typed in the repository's root."""
    words = [Path(arguments[0]).name, *(argument.replace(f"{ROOT}/", "") for argument in arguments[1:])]
    print("$", shlex.join(words), flush=True)


def heading(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
