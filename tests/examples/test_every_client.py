"""Tests that every client gets the same numbers from one server, and that a wrong answer would be reported."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from examples.every_client import run
from examples.every_client.run import Answer, is_same, main
from tests.support.optional import cannot_run, find_oip_clients

RIGHT = Answer("stubs", {"probabilities": [[0.25, 0.75]], "species": ["setosa"]})


@pytest.mark.slow
def test_every_client_gets_the_same_numbers() -> None:
    if find_oip_clients() is None:
        cannot_run("there is no whole .oip-clients: make oip-clients")
    done = subprocess.run([sys.executable, run.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NO" not in done.stdout.split()


def test_numbers_are_compared_as_float32() -> None:
    widened = replace(RIGHT, outputs={**RIGHT.outputs, "probabilities": [[0.25, 0.75000000001]]})
    assert is_same(widened, RIGHT)


@pytest.mark.parametrize(
    "answer",
    [
        replace(RIGHT, outputs={**RIGHT.outputs, "probabilities": [[0.25, 0.7500001]]}),
        replace(RIGHT, outputs={**RIGHT.outputs, "probabilities": [0.25, 0.75]}),
        replace(RIGHT, outputs={"species": ["virginica"]}),
        Answer("broken", error="ConnectionError: refused"),
    ],
)
def test_other_numbers_and_errors_differ(answer: Answer) -> None:
    assert not is_same(answer, RIGHT)


def test_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "OIP_CLIENTS", tmp_path)
    with pytest.raises(SystemExit, match="Run: make oip-clients"):
        main()
