"""Tests for the choice of the socket that gets new connections. One process holds the sockets of both servers."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.free_ports import free_ports
from tpuserve_server.hosts.handover import SharedPort, is_shared, listening_inodes

CONNECTIONS = 20


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    listener = socket.create_server((host, port), reuse_port=True, backlog=CONNECTIONS)
    listener.setblocking(False)
    return listener


def inode(listener: socket.socket) -> int:
    return os.fstat(listener.fileno()).st_ino


def shared(listener: socket.socket, elder: socket.socket | None = None) -> SharedPort:
    return SharedPort(inode(listener), None if elder is None else inode(elder))


def connections(port: int, listener: socket.socket) -> int:
    """Connect to `port` and return how many of the connections reach `listener`. All others must reach another one."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    accepted = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            break
        accepted += 1
    for client in clients:
        client.close()
    return accepted


@pytest.fixture
def port() -> int:
    [port] = free_ports(1)
    return port


@pytest.fixture
def old(port: int) -> Iterator[socket.socket]:
    with closing(listen(port)) as listener:
        yield listener


@pytest.fixture
def new(old: socket.socket, port: int) -> Iterator[socket.socket]:
    with closing(listen(port)) as listener:
        yield listener


def test_old_server_leaves_all_connections_to_the_new_one(old: socket.socket, new: socket.socket, port: int) -> None:
    assert shared(old).leave()
    assert connections(port, new) == CONNECTIONS


def test_new_server_leaves_all_connections_to_the_old_one(old: socket.socket, new: socket.socket, port: int) -> None:
    assert shared(new, elder=old).leave()
    assert connections(port, old) == CONNECTIONS


def test_server_that_remains_moves_to_the_position_of_its_elder(
    old: socket.socket, new: socket.socket, port: int
) -> None:
    assert shared(old).leave()
    remaining = shared(new, elder=old)
    old.close()
    assert connections(port, new) == CONNECTIONS
    with closing(listen(port)) as third:
        assert remaining.leave()
        assert connections(port, third) == CONNECTIONS


def test_new_server_takes_all_connections_from_the_old_one(old: socket.socket, new: socket.socket, port: int) -> None:
    shared_by_program = shared(new, elder=old)
    shared_by_program._direct(1)
    assert connections(port, new) == CONNECTIONS


def test_servers_share_connections_again_after_one_has_left(old: socket.socket, new: socket.socket, port: int) -> None:
    assert shared(old).leave() == 1
    assert connections(port, new) == CONNECTIONS
    shared(new, elder=old)._distribute()
    shared(new, elder=old)._distribute()
    assert 0 < connections(port, new) < CONNECTIONS


def test_server_that_leaves_several_others_directs_nothing(old: socket.socket, new: socket.socket, port: int) -> None:
    with closing(listen(port)):
        assert shared(old).leave() == 2
        assert connections(port, new) < CONNECTIONS


def test_server_without_another_one_keeps_its_connections(old: socket.socket, port: int) -> None:
    only = SharedPort.join(port, takes_all=True)
    assert only == shared(old)
    assert not only.leave()
    assert connections(port, old) == CONNECTIONS


def test_the_search_for_the_listening_socket_leaves_no_descriptor(old: socket.socket, port: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    SharedPort.join(port, takes_all=True)
    assert set(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile


def test_other_addresses_are_no_other_server(old: socket.socket, port: int) -> None:
    with closing(listen(port, "127.0.0.2")):
        assert not shared(old).leave()
        assert not is_shared(port)
        assert len(listening_inodes(port)) == 2


def test_waiting_connection_is_a_queue(old: socket.socket, port: int) -> None:
    assert not shared(old).has_queue()
    with socket.create_connection(("127.0.0.1", port)):
        assert shared(old).has_queue()
        old.accept()[0].close()
        assert not shared(old).has_queue()


def test_third_server_is_one_too_many(old: socket.socket, port: int) -> None:
    assert not is_shared(port)
    with closing(listen(port)):
        assert is_shared(port)


def test_port_without_a_socket_is_an_error(port: int) -> None:
    with pytest.raises(OSError, match=f"no socket of this process listens on port {port}"):
        SharedPort.join(port, takes_all=True)


def test_closed_socket_is_an_error(old: socket.socket) -> None:
    gone = SharedPort(0, None)
    with pytest.raises(OSError, match="table of sockets does not contain"):
        gone.leave()
