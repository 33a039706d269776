"""Tests for the wheels of the client, the command and formats, its dependencies, in an empty virtual environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.model_server import ModelServer
from tests.support.optional import cannot_run
from tests.support.wheels import ROOT, UV, build_wheels

PROGRAM = """
import importlib.util, json, sys
import numpy as np
from tpuserve_client import Client

with Client(sys.argv[1]) as client:
    answer = client.predict("affine", {"x": np.ones((1, 4), np.float32)})["y"].tolist()
absent = [name for name in ("tensorflow", "tensorflow_serving", "pytest") if importlib.util.find_spec(name) is None]
print(json.dumps({"answer": answer, "absent": absent}))
"""


def uv(*arguments: str | Path) -> None:
    subprocess.run([UV, "--quiet", *arguments], check=True, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin directory of an environment with only the wheels and their locked dependencies."""
    directory = tmp_path_factory.mktemp("wheel")
    wheels = build_wheels(directory / "wheels")
    uv("venv", "--python", sys.executable, directory / "venv")
    python = directory / "venv" / "bin" / "python"
    try:
        uv("pip", "install", "--python", python, "--require-hashes", "--requirement", "requirements/client.lock")
    except subprocess.CalledProcessError as error:
        if "error sending request" in error.stderr or "dns error" in error.stderr:
            cannot_run("no package index can be reached")
        pytest.fail(error.stderr)
    parts = ("tpuserve_client", "tpuserve_command", "tpuserve_formats")
    uv("pip", "install", "--python", python, "--no-deps", *(wheel for wheel in wheels if wheel.name.startswith(parts)))
    return python.parent


@pytest.mark.slow
def test_wheel_predicts_where_there_is_no_tensorflow(environment: Path, address: str) -> None:
    result = subprocess.run(
        [environment / "python", "-c", PROGRAM, address], check=True, capture_output=True, text=True, cwd=environment
    )
    document = json.loads(result.stdout)
    assert document["absent"] == ["tensorflow", "tensorflow_serving", "pytest"]
    assert document["answer"] == [[3.0] * 4]


@pytest.mark.slow
def test_wheel_brings_the_command(environment: Path, address: str, server: ModelServer) -> None:
    result = subprocess.run(
        [environment / "tpuserve", "status", "affine", "--address", address], check=True, capture_output=True, text=True
    )
    assert f"{server.version}\tAVAILABLE" in result.stdout
    missing = subprocess.run([environment / "tpuserve", "serve"], check=False, capture_output=True, text=True, env={})
    assert missing.returncode == 127
    assert "pip install 'tpuserve-server[tensorflow]'" in missing.stderr
