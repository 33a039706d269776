"""Test for the whole demo, which new users run first."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "examples/digits/demo.py", "--work"]


@pytest.mark.slow
def test_the_demo_trains_exports_serves_predicts_measures_and_stops(tmp_path: Path) -> None:
    run = subprocess.run([*DEMO, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    accuracies = [float(text) for text in re.findall(r"accuracy on 450 held-out digits: ([0-9.]+)", run.stdout)]
    exported = re.search(r"accuracy: ([0-9.]+) over 450 row\(s\) of held_out.npz, expected >= 0.95", run.stdout)
    assert exported is not None, run.stdout
    by_protocol = accuracies[-2:]
    assert len(by_protocol) == 2
    assert min(by_protocol) >= 0.95
    assert "exited with status 0" in run.stdout
    assert re.search(r"total .* 0 ", run.stdout), "the load test's table, without failures"


@pytest.mark.slow
def test_an_interrupted_demo_reports_it_and_keeps_other_files(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.write_text("mine")
    with subprocess.Popen([*DEMO, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        while b"== Train" not in demo.stdout.readline():
            pass
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=180)
    assert demo.returncode == 130
    assert b"Interrupted" in errors
    assert keep.read_text() == "mine"
