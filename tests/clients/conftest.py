"""The four ways to speak to a server (two clients, two protocols), and the server they speak to."""

from collections.abc import Iterator

import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import ModelServer, serving
from tpuserve_client import Client


@pytest.fixture(params=["grpc", "rest"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def running() -> Iterator[tuple[ModelServer, dict[str, str]]]:
    """One server for the session, and its address by protocol."""
    shared = ModelServer()
    with serving(shared, "grpc") as grpc_place, serving(shared, "rest") as rest_place:
        yield shared, {"grpc": grpc_place, "rest": rest_place}


@pytest.fixture
def server(running: tuple[ModelServer, dict[str, str]]) -> ModelServer:
    running[0].reset()
    return running[0]


@pytest.fixture
def address(server: ModelServer, running: tuple[ModelServer, dict[str, str]], protocol: str) -> str:
    return running[1][protocol]


@pytest.fixture
def client(address: str, kind: str) -> Iterator[Client]:
    with make_client(kind, address) as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed_client(address: str, kind: str, clock: Clock) -> Iterator[Client]:
    """A client whose time is `clock`, and whose jitter is always one half."""
    with make_client(kind, address, clock, jitter=lambda: 0.5) as made:
        yield made
