"""Tests for the proxy itself, with plain HTTP."""

import socket
from contextlib import ExitStack, suppress
from functools import partial

import httpx
import pytest

from tests.clients.faults.fault import Fault, page
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.scripted_upstream import Upstream

BODY = {"inputs": {"x": [[1, 2, 3, 4]]}}
PREDICT = "/v1/models/affine:predict"


def test_proxy_without_a_fault_changes_nothing(behind: Upstream) -> None:
    direct = behind.addresses["rest", False]
    with proxied(direct) as (proxy, place):
        through = httpx.post(place + PREDICT, json=BODY)
        assert through.content == httpx.post(direct + PREDICT, json=BODY).content
        assert (proxy.requests, proxy.connections) == (1, 1)


def test_fault_ends_after_its_number_of_requests(behind: Upstream) -> None:
    with proxied(behind.addresses["rest", False]) as (proxy, place):
        proxy.inject(page(502), times=2)
        statuses = [httpx.post(place + PREDICT, json=BODY).status_code for _ in range(3)]
    assert statuses == [502, 502, 200]
    assert behind.server.methods() == ["Predict"]


def test_closed_port_opens_again_with_the_same_number(behind: Upstream) -> None:
    with proxied(behind.addresses["rest", False]) as (proxy, place):
        proxy.inject(Fault.REFUSE)
        with pytest.raises(httpx.ConnectError):
            httpx.get(place + "/readyz")
        proxy.heal()
        assert httpx.get(place + "/readyz").status_code == 200


def test_stopped_proxy_closes_the_connections_that_it_has_just_accepted(behind: Upstream) -> None:
    for _ in range(20):
        with ExitStack() as stack:
            with proxied(behind.addresses["rest", False]) as (proxy, _):
                connect = partial(socket.create_connection, ("127.0.0.1", proxy.port), timeout=30)
                clients = [stack.enter_context(connect()) for _ in range(5)]
            for client in clients:
                with suppress(ConnectionError):
                    assert client.recv(1) == b""


def test_dead_connection_stays_open_and_new_connections_work(behind: Upstream) -> None:
    with proxied(behind.addresses["rest", False]) as (proxy, place):
        with httpx.Client(base_url=place, timeout=30) as client:
            assert client.get("/readyz").status_code == 200
            proxy.inject(Fault.BLACK_HOLE)
            with pytest.raises(httpx.ReadTimeout):
                client.get("/readyz", timeout=0.3)
            assert client.get("/readyz").status_code == 200
        assert proxy.connections == 2


@pytest.mark.parametrize(
    ("fault", "executed"), [(Fault.CUT_BEFORE_READ, 0), (Fault.CUT_AFTER_READ, 1), (Fault.CUT_IN_RESPONSE, 1)]
)
def test_cut_happens_at_its_place(fault: Fault, executed: int, behind: Upstream) -> None:
    with proxied(behind.addresses["rest", False]) as (proxy, place):
        proxy.inject(fault)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(place + PREDICT, json=BODY)
    assert behind.server.methods().count("Predict") == executed


def test_half_closed_socket_reads_and_never_writes(behind: Upstream) -> None:
    with proxied(behind.addresses["rest", False]) as (proxy, place):
        proxy.inject(Fault.HALF_CLOSE)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
            connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(1) == b""
            connection.sendall(b"more")  # a connection that is closed on both sides would be reset
            assert connection.recv(1) == b""
    assert place.endswith(str(proxy.port))
