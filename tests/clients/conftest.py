"""Fixtures: the two clients over the two protocols, and the server that they call."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import ModelServer, serving
from tests.clients.oip_faces import OIP, serving_oip
from tpuserve_client import Client


@pytest.fixture(params=["grpc", "rest"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def running() -> Iterator[tuple[ModelServer, dict[str, str]]]:
    """Start one server for the session. Yield it with its addresses by protocol."""
    shared = ModelServer()
    with ExitStack() as stack:
        places = {protocol: stack.enter_context(serving(shared, protocol)) for protocol in ("grpc", "rest")}
        places |= {protocol: stack.enter_context(serving_oip(shared, protocol)) for protocol in OIP}
        yield shared, places


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
    """Yield a client that uses `clock` and a constant jitter of one half."""
    with make_client(kind, address, clock, jitter=lambda: 0.5) as made:
        yield made
