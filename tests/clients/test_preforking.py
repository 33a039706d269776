"""Clients in the processes of real applications: gunicorn's forked workers, and pools of multiprocessing.

Rule: each process gets the answers to its own requests, and no error.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.clients.faults.scripted_upstream import ROOT, UpstreamProcess, upstream_process
from tests.clients.preforking import RIGHT, ROUTES, WORKERS, count_outcomes, preforked

CALLS = 400
POOL_CALLS = 24

# One process starts gunicorn for all tests.
pytestmark = pytest.mark.xdist_group("preforking")


@pytest.fixture(scope="module")
def upstream() -> Iterator[UpstreamProcess]:
    with upstream_process() as running:
        yield running


@pytest.fixture(scope="module")
def port(upstream: UpstreamProcess) -> Iterator[int]:
    with preforked(upstream.addresses) as port:
        yield port


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_worker_gets_its_own_predictions(port: int, upstream: UpstreamProcess, route: tuple[str, str]) -> None:
    upstream.executed()
    outcomes = count_outcomes(port, CALLS, [route])
    assert Counter(outcome for _, outcome in outcomes.elements()) == {RIGHT: CALLS}
    assert list(outcomes.values()) == [CALLS // WORKERS] * WORKERS
    assert upstream.executed()["Predict"] == CALLS  # no request was sent twice


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pool_of_processes_predicts_with_pickled_client(
    upstream: UpstreamProcess, protocol: str, kind: str, method: str
) -> None:
    command = [sys.executable, "-m", "tests.clients.process_pool", method, kind, upstream.addresses[protocol]]
    command.append(str(POOL_CALLS))
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout.strip()) == (0, str(POOL_CALLS)), ended.stderr


def test_fork_during_an_asyncio_call_over_grpc(upstream: UpstreamProcess) -> None:
    command = [sys.executable, "-m", "tests.clients.fork_during_call"]
    command += [upstream.addresses["grpc"], upstream.addresses["rest"]]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.stdout.splitlines() == [
        "child, AsyncClient over gRPC: FailedPrecondition",
        "child, AsyncClient over REST: right",
        "child, Client over gRPC: right",
        "parent, the pending call: right",
        "parent, the next call: right",
    ], ended.stderr


def test_grpc_without_fork_support_fails_at_once(upstream: UpstreamProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    with preforked(upstream.addresses) as port:
        grpc = count_outcomes(port, 16, [("sync", "grpc"), ("async", "grpc")])
        rest = count_outcomes(port, 16, [("sync", "rest"), ("async", "rest")])
    assert {outcome.partition(".")[0] for _, outcome in grpc} == {
        "FailedPrecondition: GRPC_ENABLE_FORK_SUPPORT disables gRPC in forked processes"
    }
    assert {outcome for _, outcome in rest} == {RIGHT}
