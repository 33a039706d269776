"""Test for examples/drop_in/tour.py, run as the README instructs a user of TensorFlow Serving."""

import itertools
import subprocess
import sys

import pytest

from tests.deploy.dockerfile import ROOT
from tests.support.optional import needs

pytestmark = [pytest.mark.slow]


@needs("curl")
def test_the_tour_gets_an_answer_from_everything() -> None:
    command = [sys.executable, str(ROOT / "examples/drop_in/tour.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("$ tensorflow_model_server ")
    for first, answer in itertools.pairwise(lines):
        if first.startswith(("curl", "Predict", "Classify", "Regress", "MultiInference", "GetModel", "Handle")):
            assert answer.startswith("  "), first
    assert '  {"predictions": [[3.5], [4.0], [5.5]]}' in lines
    assert any('model_name="newcomer"' in line for line in lines)
    assert "  NOT_FOUND: Servable not found for request: Latest(leaver)" in lines
    assert lines[-1] == "exit status 0"
