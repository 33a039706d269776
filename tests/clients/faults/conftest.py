"""Fixture: the upstream behind the faults."""

from collections.abc import Iterator

import pytest

from tests.clients.faults.scripted_upstream import Upstream, UpstreamProcess, upstream, upstream_process


@pytest.fixture(scope="package")
def shared_upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstream(tmp_path_factory.mktemp("certificates")) as running:
        yield running


@pytest.fixture
def behind(shared_upstream: Upstream) -> Upstream:
    """Return a model server in this process, in its initial state."""
    shared_upstream.server.reset()
    return shared_upstream


@pytest.fixture(scope="package")
def shared_process() -> Iterator[UpstreamProcess]:
    with upstream_process() as running:
        yield running


@pytest.fixture
def process(shared_process: UpstreamProcess) -> UpstreamProcess:
    """Return a model server in a separate process, without requests so far."""
    shared_process.executed()
    return shared_process


@pytest.fixture(scope="package")
def slow_process() -> Iterator[UpstreamProcess]:
    """Start a model server in a separate process that needs 50 ms for a prediction."""
    with upstream_process(prediction_s=0.05) as running:
        yield running
