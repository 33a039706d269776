"""Fixtures: the two clients over the two protocols, and the server that they call."""

from collections.abc import Iterator

import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import ModelServer, serving, wait_until_idle
from tpuserve_client import Client


@pytest.fixture(params=["grpc", "rest"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def shared_rest() -> Iterator[tuple[ModelServer, str]]:
    """Start one REST server for the session, because stopping it takes 0.1 s. Yield it with its address."""
    shared = ModelServer()
    with serving(shared, "rest") as place:
        yield shared, place


@pytest.fixture
def server(protocol: str, shared_rest: tuple[ModelServer, str]) -> Iterator[ModelServer]:
    """Yield a server in its initial state, which gets the requests of this test only."""
    if protocol == "grpc":
        yield ModelServer()
        return
    shared, place = shared_rest
    shared.reset()
    yield shared
    shared.gate.set()  # ends the requests that wait
    wait_until_idle(place)


@pytest.fixture
def address(server: ModelServer, shared_rest: tuple[ModelServer, str], protocol: str) -> Iterator[str]:
    if protocol == "rest":
        yield shared_rest[1]
        return
    with serving(server, "grpc") as place:
        yield place


@pytest.fixture
def client(address: str, kind: str) -> Iterator[Client]:
    with make_client(kind, address) as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed_client(address: str, kind: str, clock: Clock) -> Iterator[Client]:
    """Yield a client that uses `clock` and a constant jitter of one half."""
    with make_client(kind, address, clock, jitter=lambda: 0.5) as made:
        yield made
