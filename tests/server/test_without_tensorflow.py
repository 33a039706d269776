"""Tests that the server imports no TensorFlow before a model needs it."""

import pkgutil
import subprocess
import sys

import pytest

import tpuserve_server

# Modules that run SavedModels. The first load imports them.
RUNS_TENSORFLOW = {
    f"tpuserve_server.executors.tensorflow.{name}"
    for name in ("saved_session", "executor", "c_api", "least_sizes", "pinned_saved_model")
}
# Modules that only replicas of Ray Serve import (`make ray`).
NEEDS_RAY = {"tpuserve_server.startup.ray_serve"}
MODULES = {module.name for module in pkgutil.walk_packages(tpuserve_server.__path__, "tpuserve_server.")}


@pytest.fixture(scope="module")
def import_times() -> str:
    """Return the output of `python -X importtime` for every other module, one line per import."""
    program = f"import {', '.join(sorted(MODULES - RUNS_TENSORFLOW - NEEDS_RAY))}"
    command = [sys.executable, "-X", "importtime", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def test_no_module_but_those_that_run_it_imports_tensorflow(import_times: str) -> None:
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in import_times.splitlines()}
    assert {"tpuserve_server", "google", "numpy"} <= imported
    assert not {"tensorflow", "tensorflow_serving", "keras"} & imported


def test_the_modules_that_run_it_are_there() -> None:
    assert RUNS_TENSORFLOW | NEEDS_RAY < MODULES
