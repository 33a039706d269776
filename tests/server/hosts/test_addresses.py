import errno
import socket
from pathlib import Path

import pytest

from tpuserve_server.hosts.addresses import cannot_listen, check_free, join, listen
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
