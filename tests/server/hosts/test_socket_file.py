import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.socket_file import SocketFile, socket_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grpc.sock"


def listen(path: str | Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.fixture
def other(path: Path) -> Iterator[socket.socket]:
    """Yield another server, which listens at the path."""
    with closing(listen(path)) as listener:
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
    with closing(listen(file.bound)) as ours:
        file.publish()
        assert is_connected(connect(path), ours)
    assert [item.name for item in path.parent.iterdir()] == ["grpc.sock"]


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o770), (0o022, 0o750), (0o077, 0o700)])
def test_other_users_cannot_connect_whatever_the_umask_is(path: Path, umask: int, mode: int) -> None:
    file = SocketFile(str(path), takes_over=False)
    before = os.umask(umask)
    try:
        listener = listen(file.bound)
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
    listen(path).close()
    file = SocketFile(str(path), takes_over=False)
    with closing(listen(file.bound)) as ours:
        file.publish()
        assert is_connected(connect(path), ours)


def test_the_socket_goes_with_its_server(path: Path) -> None:
    options = HostOptions(grpc_socket_path=str(path))
    with socket_file(options) as file:
        assert file is not None
        listen(file.bound).close()
        file.publish()
        assert path.is_socket()
    assert list(path.parent.iterdir()) == []


def test_a_socket_that_was_taken_over_stays(path: Path) -> None:
    first, second = (SocketFile(str(path), takes_over=True) for _ in range(2))
    for file in (first, second):
        listen(file.bound).close()
        file.publish()
    first.remove()
    assert path.is_socket()
    second.remove()
    assert not path.exists()


def test_what_was_bound_and_never_published_is_removed(path: Path) -> None:
    file = SocketFile(str(path), takes_over=False)
    listen(file.bound).close()
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
    with closing(listen(file.bound)), pytest.raises(HostError, match="the path is a file that is not a socket"):
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
