import contextlib
import errno
import socket
import sys
from pathlib import Path

import pytest

from tpuserve_server.hosts.addresses import cannot_listen, check_free, is_loopback, join, listen
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError


def test_ipv6_addresses_get_brackets() -> None:
    assert join("::1", 8500) == "[::1]:8500"
    assert join("127.0.0.1", 8500) == "127.0.0.1:8500"


def test_other_reasons_are_passed_on() -> None:
    error = cannot_listen("10.0.0.1:80", "REST", OSError(errno.EACCES, "Permission denied"))
    assert str(error) == "Cannot listen for REST on 10.0.0.1:80: Permission denied."


def test_address_of_another_machine_cannot_be_had() -> None:
    with pytest.raises(HostError, match=r"Cannot listen for REST on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0, "REST")


def test_free_addresses_are_free(tmp_path: Path) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    check_free(HostOptions(bind_address="127.0.0.1", grpc_port=0, rest_port=None, grpc_socket_path=str(stale)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (HostOptions(bind_address="127.0.0.1"), True),
        (HostOptions(bind_address="::1"), True),
        (HostOptions(bind_address="localhost"), True),
        (HostOptions(bind_address="0.0.0.0"), False),
        (HostOptions(bind_address="server.example"), False),
        (HostOptions(grpc_port=None, rest_port=None, grpc_socket_path="/run/grpc.sock"), True),
    ],
)
def test_loopback_addresses_are_known(options: HostOptions, expected: bool) -> None:
    assert is_loopback(options) is expected


@pytest.mark.parametrize(
    ("is_shared", "reason"),
    [
        (False, r"the address is in use by a server without --reuse_port, or of another user\."),
        (True, r"two servers already share port \d+\. Stop the older one first\."),
    ],
)
def test_ports_that_cannot_be_shared_are_refused(is_shared: bool, reason: str) -> None:
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(listen("127.0.0.1", 0, "REST", reuse_port=is_shared))
        port = first.getsockname()[1]
        if is_shared:
            servers.enter_context(listen("127.0.0.1", port, "REST", reuse_port=True))
        with pytest.raises(HostError, match=rf"Cannot listen for REST on 127\.0\.0\.1:{port}: {reason}"):
            check_free(HostOptions("127.0.0.1", None, port, reuse_port=True))


def test_check_of_a_shared_port_takes_none_of_its_connections() -> None:
    with listen("127.0.0.1", 0, "REST", reuse_port=True) as first:
        address = first.getsockname()
        check_free(HostOptions("127.0.0.1", None, address[1], reuse_port=True))
        with socket.create_connection(address), first.accept()[0]:
            pass


def test_address_of_another_machine_cannot_be_shared() -> None:
    with pytest.raises(HostError, match=r"Cannot listen for REST on 192\.0\.2\.1:1"):
        check_free(HostOptions("192.0.2.1", None, 1, reuse_port=True))


def test_sharing_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(HostError, match="--reuse_port works on Linux only"):
        check_free(HostOptions(reuse_port=True))
