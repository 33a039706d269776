"""Tests that the example records a real server, with TensorFlow and with device programs."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from examples.profile import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "folder", "operation"),
    [
        (("--device-programs",), "pjrt", "fusion"),
        # tests/e2e/test_profiler.py records TensorFlow too.
        pytest.param((), "tensorflow", "Conv2D", marks=pytest.mark.nightly),
    ],
)
def test_the_example_prints_the_batches_and_the_operations(
    flags: tuple[str, ...], folder: str, operation: str, tmp_path: Path
) -> None:
    command = [sys.executable, run.__file__, "--out", str(tmp_path), "--seconds", "1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert trace.relative_to(tmp_path).parts[:3] == (folder, "plugins", "profile")
    lines = done.stdout.splitlines()
    (batches,) = [line.split() for line in lines if "digits:1" in line]
    assert int(batches[1]) > 0
    assert any(operation in line for line in lines)
    assert f"To see it: tensorboard --logdir={tmp_path}" in lines


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "60.1", "x", ""])
def test_a_duration_that_the_server_refuses_is_refused_at_once(seconds: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a number of seconds from 0\.1 to 60"):
        run.duration_s(seconds)
