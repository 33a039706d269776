"""Tests for the sockets of the server's addresses, and for the file of the UNIX socket."""

import contextlib
import errno
import os
import select
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tpuserve_server.hosts import addresses
from tpuserve_server.hosts.addresses import (
    SocketFile,
    bound,
    cannot_listen,
    heed_new_connections,
    ignore_new_connections,
    join,
    listen,
    listening,
    socket_file,
)
from tpuserve_server.hosts.application import HostError, HostOptions

LOCAL = "127.0.0.1"


def test_ipv6_addresses_get_brackets() -> None:
    assert join("::1", 8500) == "[::1]:8500"
    assert join(LOCAL, 8500) == "127.0.0.1:8500"


def test_other_reasons_are_passed_on() -> None:
    error = cannot_listen("10.0.0.1:80", "REST", OSError(errno.EACCES, "Permission denied"))
    assert str(error) == "Cannot listen for REST on 10.0.0.1:80: Permission denied."


@pytest.mark.parametrize("reuse_port", [False, True])
def test_address_of_another_machine_cannot_be_had(reuse_port: bool) -> None:
    options = HostOptions("192.0.2.1", None, 1, reuse_port=reuse_port)
    with pytest.raises(HostError, match=r"Cannot listen for REST on 192\.0\.2\.1:1"), bound(options, None):
        raise AssertionError


def test_clients_connect_once_the_sockets_listen(tmp_path: Path) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    file = SocketFile(str(stale), takes_over=False)
    options = HostOptions(LOCAL, 0, 0)
    with bound(options, file) as sockets:
        found = listening(options, sockets, file)
        assert [found.grpc, found.rest] == [f"{LOCAL}:{sockets[name].getsockname()[1]}" for name in ("grpc", "rest")]
        assert found.grpc_socket == f"unix:{stale}"
        address = sockets["rest"].getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        listen("rest", sockets["rest"])
        with socket.create_connection(address), sockets["rest"].accept()[0]:
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.parametrize(("host", "client"), [(LOCAL, LOCAL), ("::", LOCAL), ("::", "::1")])
def test_a_client_that_comes_late_is_refused_once_the_socket_has_closed(host: str, client: str) -> None:
    with bound(HostOptions(host, None, 0), None) as sockets:
        address = (client, sockets["rest"].getsockname()[1])
        listen("rest", sockets["rest"])
        with socket.create_connection(address) as early, socket.socket(early.family) as late:
            ignore_new_connections(sockets["rest"], for_good=False)
            late.setblocking(False)
            assert late.connect_ex(address) == errno.EINPROGRESS
            accepted, _ = sockets["rest"].accept()
            with accepted:
                accepted.sendall(b"x")
                assert early.recv(1) == b"x"
            sockets["rest"].close()
            attempt = select.poll()
            attempt.register(late, select.POLLOUT)
            assert attempt.poll(60_000)
            assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def test_a_new_process_takes_the_connections_that_the_one_before_it_ignored() -> None:
    with bound(HostOptions(LOCAL, None, 0), None) as sockets:
        listen("rest", sockets["rest"])
        ignore_new_connections(sockets["rest"], for_good=False)
        listen("rest", sockets["rest"])
        socket.create_connection(sockets["rest"].getsockname(), timeout=10).close()


class Unprivileged(socket.socket):
    """A socket of a process that may attach no filter."""

    def setsockopt(self, *arguments: Any) -> None:  # noqa: ANN401 - the arguments of any option
        if arguments[1] == addresses._SO_ATTACH_FILTER:
            raise PermissionError
        super().setsockopt(*arguments)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_process_without_privileges_ignores_new_connections_only_for_good(for_good: bool) -> None:
    with Unprivileged() as own, socket.socket() as late:
        own.bind((LOCAL, 0))
        own.listen()
        ignore_new_connections(own, for_good=for_good)
        late.setblocking(False)
        late.connect_ex(own.getsockname())
        attempt = select.poll()
        attempt.register(late, select.POLLOUT)
        assert bool(attempt.poll(200)) is not for_good
        heed_new_connections(own)


def test_every_address_of_ipv6_takes_ipv4_too() -> None:
    with bound(HostOptions("::", None, 0), None) as sockets:
        listen("rest", sockets["rest"])
        with socket.create_connection((LOCAL, sockets["rest"].getsockname()[1])):
            pass


def test_port_in_use_is_refused() -> None:
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(HostError, match=rf"Cannot listen for gRPC on 127\.0\.0\.1:{port}: the address is in use"),
            bound(HostOptions(LOCAL, port, None), None),
        ):
            raise AssertionError


def test_port_that_another_process_has_taken_meanwhile_is_refused() -> None:
    with bound(HostOptions(LOCAL, None, 0), None) as sockets:
        address = sockets["rest"].getsockname()
        with socket.create_server(address), pytest.raises(HostError, match="the address is in use"):
            listen("rest", sockets["rest"])


@pytest.mark.parametrize(
    ("is_shared", "reason"),
    [
        (False, r"the address is in use by a server without --reuse_port, or of another user\."),
        (True, r"two servers already share port \d+\. Stop the older one first\."),
    ],
)
def test_ports_that_cannot_be_shared_are_refused(is_shared: bool, reason: str) -> None:
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(socket.create_server((LOCAL, 0), reuse_port=is_shared))
        port = first.getsockname()[1]
        if is_shared:
            servers.enter_context(socket.create_server((LOCAL, port), reuse_port=True))
        options = HostOptions(LOCAL, None, port, reuse_port=True, replace_pid=1 if is_shared else None)
        with (
            pytest.raises(HostError, match=rf"Cannot listen for REST on 127\.0\.0\.1:{port}: {reason}"),
            bound(options, None),
        ):
            raise AssertionError


def test_any_number_of_servers_shares_a_port() -> None:
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(socket.create_server((LOCAL, 0), reuse_port=True))
        port = first.getsockname()[1]
        servers.enter_context(socket.create_server((LOCAL, port), reuse_port=True))
        servers.enter_context(bound(HostOptions(LOCAL, None, port, reuse_port=True), None))


def test_a_socket_that_does_not_listen_yet_takes_no_connections_of_a_shared_port() -> None:
    with socket.create_server((LOCAL, 0), reuse_port=True) as first:
        address = first.getsockname()
        with (
            bound(HostOptions(LOCAL, None, address[1], reuse_port=True), None),
            socket.create_connection(address),
            first.accept()[0],
        ):
            pass


def test_sharing_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with (
        pytest.raises(HostError, match="--reuse_port works on Linux only"),
        bound(HostOptions(reuse_port=True), None),
    ):
        raise AssertionError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grpc.sock"


def listen_on(path: str | Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.fixture
def other(path: Path) -> Iterator[socket.socket]:
    """Yield another server, which listens at the path."""
    with closing(listen_on(path)) as listener:
        yield listener


def is_connected(client: socket.socket, server: socket.socket) -> bool:
    server.settimeout(5)
    with client, server.accept()[0] as accepted:
        accepted.sendall(b"x")
        return client.recv(1) == b"x"


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


def test_another_servers_socket_is_replaced_if_it_may_be(path: Path, other: socket.socket) -> None:
    file = SocketFile(str(path), takes_over=True)
    with closing(listen_on(file.bound)) as ours:
        file.publish()
        assert is_connected(connect(path), ours)
    assert [item.name for item in path.parent.iterdir()] == ["grpc.sock"]


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o770), (0o022, 0o750), (0o077, 0o700)])
def test_other_users_cannot_connect_whatever_the_umask_is(path: Path, umask: int, mode: int) -> None:
    file = SocketFile(str(path), takes_over=False)
    before = os.umask(umask)
    try:
        listener = listen_on(file.bound)
    finally:
        os.umask(before)
    with closing(listener):
        file.publish()
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_another_servers_socket_is_in_use_otherwise(path: Path, other: socket.socket) -> None:
    before = path.stat()
    with pytest.raises(HostError, match="another server listens on it"):
        SocketFile(str(path), takes_over=False).check()
    assert os.path.samestat(path.stat(), before)


def test_a_server_with_a_full_backlog_is_there_all_the_same(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with connect(path), pytest.raises(HostError, match="another server listens on it"):
            SocketFile(str(path), takes_over=False).check()


def test_a_socket_that_a_dead_server_left_is_replaced(path: Path) -> None:
    listen_on(path).close()
    file = SocketFile(str(path), takes_over=False)
    with closing(listen_on(file.bound)) as ours:
        file.publish()
        assert is_connected(connect(path), ours)


def test_the_socket_goes_with_its_server(path: Path) -> None:
    options = HostOptions(grpc_socket_path=str(path))
    with socket_file(options) as file:
        assert file is not None
        listen_on(file.bound).close()
        file.publish()
        assert path.is_socket()
    assert list(path.parent.iterdir()) == []


def test_a_socket_that_was_taken_over_stays(path: Path) -> None:
    first, second = (SocketFile(str(path), takes_over=True) for _ in range(2))
    for file in (first, second):
        listen_on(file.bound).close()
        file.publish()
    first.remove()
    assert path.is_socket()
    second.remove()
    assert not path.exists()


def test_what_was_bound_and_never_published_is_removed(path: Path) -> None:
    file = SocketFile(str(path), takes_over=False)
    listen_on(file.bound).close()
    file.remove()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing", "link to a file"])
def test_what_is_no_socket_is_never_replaced(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        target = path.with_name("target")
        path.symlink_to(target)
        if kind == "link to a file":
            target.write_text("mine")
    file = SocketFile(str(path), takes_over=True)
    with closing(listen_on(file.bound)), pytest.raises(HostError, match="the path is a file that is not a socket"):
        file.publish()
    assert os.path.lexists(path)
    assert not path.is_socket()


def test_it_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="its directory does not exist"):
        SocketFile(str(tmp_path / "none" / "grpc.sock"), takes_over=False).check()


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"the path is too long\. Choose one that is \d+ bytes shorter"):
        SocketFile(str(tmp_path / ("x" * 200)), takes_over=False).check()


def test_a_relative_path_is_one_of_the_folder_it_is_made_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = SocketFile("grpc.sock", takes_over=False)
    monkeypatch.chdir("/")
    assert file.address == f"unix:{tmp_path}/grpc.sock"
