"""The whole workflow on one machine: train, export, serve, predict over gRPC and REST, load-test.

    make demo      # all steps; in a terminal, the server then runs until Ctrl-C
    make serve     # serve the model of the demo until Ctrl-C; train and export it only if there is none

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
    parser.add_argument("--serve", action="store_true", help="Only serve, until Ctrl-C.")
    parser.add_argument("--port", type=int, default=8501, help="With --serve: port of REST and the console.")
    parser.add_argument("--grpc-port", type=int, default=8500, help="With --serve: port of gRPC.")
    parser.add_argument("--work", type=Path, default=ROOT / ".demo", help="Directory for checkpoints and models.")
    arguments = parser.parse_args()
    # Treat SIGTERM like Ctrl-C, so that stopping the demo also stops its server. Shells start background jobs with
    # Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if arguments.serve:
            serve(arguments.work, arguments.grpc_port, arguments.port)
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
    """Run all steps. The export publishes the next version, which a running `make serve` then loads."""
    started_s = time.monotonic()
    print(INTRODUCTION)
    introduce_commands()
    # The training would continue from an existing checkpoint.
    shutil.rmtree(work / "checkpoints", ignore_errors=True)
    train_and_export(work)
    grpc_port, rest_port = free_port(), free_port()
    _, held_out = load()
    with server(work, grpc_port, rest_port) as process:
        for protocol, address in (("gRPC", f"127.0.0.1:{grpc_port}"), ("REST", f"http://127.0.0.1:{rest_port}")):
            heading(f"Predict {len(held_out.labels)} held-out digits over {protocol}")
            predict(address, held_out)
        heading("Load-test the server for 10 s")
        run("loadtest", MODEL, "--grpc", f"127.0.0.1:{grpc_port}", "--rest", f"http://127.0.0.1:{rest_port}",
            "--duration", "10s", "--generator-limit", "note")  # fmt: skip
        print(f"\nThe demo finished in {time.monotonic() - started_s:.0f} s.")
        if sys.stdin.isatty() and sys.stdout.isatty():
            keep_serving(process, work, grpc_port, rest_port)
        else:
            stop(process)
    print("\nNext: `make serve` serves this model again. README.md lists the tutorials.")


def serve(work: Path, grpc_port: int, rest_port: int) -> None:
    """Serve the digits model until Ctrl-C, and print example requests."""
    check_ports(grpc_port, rest_port)
    introduce_commands()
    if not any((work / "models" / MODEL).glob("[0-9]*/saved_model.pb")):
        train_and_export(work)
    with server(work, grpc_port, rest_port) as process:
        keep_serving(process, work, grpc_port, rest_port)


def keep_serving(process: subprocess.Popen[bytes], work: Path, grpc_port: int, rest_port: int) -> None:
    """Print example requests, and wait until Ctrl-C. Raises DemoError if the server ends by itself."""
    _, held_out = load()
    body = work / "digit.json"
    body.write_text(json.dumps({"instances": held_out.images[:1].tolist()}))
    heading("The server is running. Press Ctrl-C to stop it")
    print(SNIPPETS.format(body=shortened(body), grpc=f"127.0.0.1:{grpc_port}", rest=f"http://127.0.0.1:{rest_port}"))
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        raise DemoError(f"The server exited with status {process.wait()}. Its log above gives the reason.")
    stop(process)


INTRODUCTION = """\
This demo trains a small model, exports it, starts a server, sends predictions over gRPC and REST, and runs a load test.
In a terminal, the server then runs until you press Ctrl-C."""

SNIPPETS = """\
To see its load and to classify pictures, open this page in a browser: {rest}/console
To call it, type these commands in a second terminal:

$ curl -d @{body} {rest}/v1/models/digits:predict
$ tpuserve status digits --address {grpc}
$ python - <<'EOF'
from examples.digits.data import load
from tpuserve_client import Client

_, held_out = load()
with Client("{grpc}") as client:
    probabilities = client.predict("digits", {{"image": held_out.images[:8]}})["probabilities"]
print(probabilities.argmax(axis=1), held_out.labels[:8])
EOF"""


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
    heading("Stop the server")
    process.send_signal(signal.SIGTERM)
    status = process.wait(STOP_TIMEOUT_S)
    print(f"  The server finished pending requests and exited with status {status}.")
    if status != 0:
        raise DemoError(f"The server exited with status {status}, expected 0.")


def free_port() -> int:
    """Return a free port, so that the demo does not conflict with a server on the usual ones."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def check_ports(grpc_port: int, rest_port: int) -> None:
    """Raise DemoError if another program listens on a port. The server would report it after the training."""
    for variable, port in (("GRPC_PORT", grpc_port), ("PORT", rest_port)):
        with socket.socket() as listener:
            # As servers do: connections that have ended do not hold the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                raise DemoError(
                    f"Cannot listen on port {port}: {error.strerror}. "
                    f"Choose another one, such as: make serve {variable}={free_port()}"
                ) from None


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
    """Return the path relative to the repository's root, or the path itself if it is elsewhere."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def introduce_commands() -> None:
    """Print how to type the commands of the following steps."""
    print("Lines that start with $ are commands that you can type. Type this one first in each terminal:\n")
    # An installation without a virtual environment has its programs on PATH.
    activate = BIN / "activate"
    print(
        f"$ cd {shlex.quote(str(ROOT))}{f' && . {shlex.quote(str(shortened(activate)))}' if activate.exists() else ''}"
    )


def show(arguments: Sequence[str]) -> None:
    """Print the command as typed in the repository's root, in its environment."""
    words = [Path(arguments[0]).name, *(argument.replace(f"{ROOT}/", "") for argument in arguments[1:])]
    print("$", shlex.join(words), flush=True)


def heading(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
