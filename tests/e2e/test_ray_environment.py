"""Tests that run the tests of Ray Serve in its environment, in a network namespace with the loopback alone."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.support import loopback_only
from tests.support.optional import cannot_run, find_ray

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "tests" / "contract"
# Tests of other servers, of the command, and of a reload, which changes one replica alone.
_OTHERS = (
    "test_client_official_server.py", "test_command_line.py", "test_formats.py", "test_lifecycle_rules.py",
    "test_oip_descriptors.py", "test_reload.py", "test_started_otherwise.py",
)  # fmt: skip
# Ray's gRPC server answers both: with its reflection, and with grpcio's text.
_RAYS_OWN = (
    "test_grpc_models.py::test_reflection_tells_every_service",
    "test_grpc_predict.py::test_a_method_that_is_not_served",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(bool(importlib.util.find_spec("ray")), reason="they are collected here"),
]


def _run(*arguments: str) -> str:
    """Run pytest in the environment and return its output, with Ray's logs only after a failure."""
    python = find_ray() or cannot_run("there is no whole .ray: make ray")
    if reason := loopback_only.obstacle():
        pytest.skip(f"this machine allows no network namespace: {reason}")
    # Ray imports pydantic models that warn.
    pytest_command = (str(python), "-m", "pytest", "-q", "-rN", "-s", "-p", "no:cacheprovider", "-W", "ignore")
    command = [*loopback_only.COMMAND, *pytest_command, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5000:]
    return done.stdout


def test_replicas_pass_the_contract_tests() -> None:
    tests = [str(path.relative_to(ROOT)) for path in CONTRACT.glob("test_*.py") if path.name not in _OTHERS]
    output = _run(*sorted(tests), *(f"--deselect=tests/contract/{name}" for name in _RAYS_OWN))
    print(output.splitlines()[-1])


def test_a_cluster_of_two_nodes_passes_its_tests() -> None:
    output = _run("tests/e2e/ray")
    print("\n".join(line for line in output.splitlines() if " answered, " in line or " passed" in line))
