"""Fixtures: the two clients over the two protocols, and the server that they call."""

from collections.abc import Iterator

import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import ModelServer, serving, wait_until_idle
from tests.clients.oip_faces import serving_oip
from tpuserve_client import Client


@pytest.fixture(params=["grpc", "rest"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def shared_http() -> Iterator[tuple[ModelServer, dict[str, str]]]:
    """Start one HTTP server of each protocol for the session, because stopping it takes 0.1 s. Yield the addresses."""
    shared = ModelServer()
    with serving(shared, "rest") as rest, serving_oip(shared, "oip-rest") as oip_rest:
        yield shared, {"rest": rest, "oip-rest": oip_rest}


@pytest.fixture
def server(protocol: str, shared_http: tuple[ModelServer, dict[str, str]]) -> Iterator[ModelServer]:
    """Yield a server in its initial state, which gets the requests of this test only."""
    shared, places = shared_http
    if protocol not in places:
        yield ModelServer()
        return
    shared.reset()
    yield shared
    shared.gate.set()  # ends the requests that wait
    wait_until_idle(places[protocol])


@pytest.fixture
def address(server: ModelServer, shared_http: tuple[ModelServer, dict[str, str]], protocol: str) -> Iterator[str]:
    _, places = shared_http
    if protocol in places:
        yield places[protocol]
        return
    with serving(server, "grpc") if protocol == "grpc" else serving_oip(server, protocol) as place:
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
