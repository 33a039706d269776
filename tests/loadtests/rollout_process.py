"""A `tpuserve rollout` that runs in the background of a test, with short load tests."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

HEEDING_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tpuserve_loadtests.cli import commands; commands.LEAST_SOAK_S = 2.0; "  # the default is 10
    "from tpuserve_loadtests.cli.rollout_command import main; main()"
)
# The machine is small and busy, and the tests are not about the generator or a few milliseconds. The constant rate
# gives each segment of the soak, a tenth of a second, some requests.
QUICK = ["--rate", "80", "--arrivals", "constant", "--rounds", "3", "--duration", "400ms", "--warm-up", "100ms",
         "--canary-duration", "400ms", "--generator-limit", "note", "--least-effect", "4", "--unclear", "note",
         "--soak", "2s", "--segments", "20", "--json"]  # fmt: skip
# Options of a soak in which a tired version fails at once. Its batches before it are at most 300.
TIRING: Final = ("--no-parity", "--soak", "1h", "--fail-if", "wrong>0")
TIRED_AFTER: Final = 400


def save_tired(path: Path, after: int) -> None:
    """Save a version that doubles `x`, and answers wrong after this number of batches."""
    module = tf.Module()
    module.count = tf.Variable(0)

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": 2 * x + tf.cast(module.count.assign_add(1) > after, tf.float32)}

    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})


class RolloutProcess:
    """The running command. `errors` are the lines that it has printed on standard error."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.errors: list[str] = []

    def wait_for(self, text: str) -> str:
        """Block until a line contains the text, and return the line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)
            if text in line:
                return line
        raise AssertionError(f"the rollout ended without {text!r}: {''.join(self.errors)}")

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Block until the end, and return the exit code and the report."""
        output, errors = self.process.communicate(timeout=200)
        self.errors.append(errors)
        return self.process.returncode, json.loads(output or "{}")

    @property
    def text(self) -> str:
        return "".join(self.errors)


@contextmanager
def running_rollout(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[RolloutProcess]:
    """Start a rollout with the options of QUICK and these. Kill it at the end if it still runs."""
    command = [sys.executable, "-c", HEEDING_CTRL_C, *arguments[:1], *QUICK, *arguments[1:]]
    environment = {**environ, **(variables or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield RolloutProcess(process)
        finally:
            process.kill()
