import resource
import socket

import grpc
import pytest

from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tpuserve_server.hosts.addresses import bound
from tpuserve_server.hosts.application import HostError, HostOptions
from tpuserve_server.hosts.limits import find_connection_limit, known_arguments, raise_file_limit, unknown_arguments

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(("open_files", "connections"), [(1024, 384), (100_000, 10_000), (100, 1), (NO_LIMIT, 10_000)])
def test_connections_leave_files_for_models(monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    assert find_connection_limit(HostOptions()) == connections


@pytest.mark.parametrize(
    ("before", "hard", "after"),
    [
        (1024, 1 << 20, 20_256),
        (1024, NO_LIMIT, 20_256),
        (1024, 4096, 4096),
        (1 << 20, 1 << 20, None),
        (NO_LIMIT, NO_LIMIT, None),
    ],
)
def test_process_may_open_a_file_for_each_connection(
    monkeypatch: pytest.MonkeyPatch, before: int, hard: int, after: int | None
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (before, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    raise_file_limit(HostOptions())
    assert set_limits == ([] if after is None else [(after, hard)])


def test_arguments_without_effect_are_named() -> None:
    arguments = (("grpc.max_concurrent_streams", 1), ("grpc.no_such", 2), ("my.own", "x"))
    assert unknown_arguments(arguments) == ["grpc.no_such", "my.own"]
    assert known_arguments(arguments) == {"grpc.max_concurrent_streams": 1}


@pytest.mark.parametrize("value", ["soon", 0, -1])
def test_what_is_no_positive_number_is_refused(value: int | str) -> None:
    with pytest.raises(HostError, match=r"grpc\.max_connection_age_ms expects a positive number, got"):
        known_arguments((("grpc.max_connection_age_ms", value),))


@pytest.mark.parametrize(
    ("arguments", "idle_s", "interval_s"),
    [
        ((), 300, 20),
        ((("grpc.keepalive_time_ms", 60_000), ("grpc.keepalive_timeout_ms", 1)), 60, 1),
        ((("grpc.keepalive_time_ms", 2**31 - 1),), 32767, 20),
    ],
)
def test_keepalive_is_that_of_tcp(arguments: tuple[tuple[str, int | str], ...], idle_s: int, interval_s: int) -> None:
    with bound(HostOptions("127.0.0.1", 0, None, grpc_arguments=arguments), None) as sockets:
        one = sockets["grpc"]
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == interval_s


# grpcio's thread that reports states may make another call after the channel has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_old_connections_are_closed_and_calls_go_on() -> None:
    arguments = [["grpc.max_connection_age_ms", 100]]
    with running(grpc_arguments=arguments) as host, grpc.insecure_channel(host.grpc) as channel:
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        call = unary(channel, "Unary")
        while states.count(grpc.ChannelConnectivity.READY) < 2:
            # The channel becomes READY again with each new connection.
            assert call(b"x", timeout=PATIENCE_S) == b"x"


def test_a_value_that_cannot_be_ends_the_start() -> None:
    arguments = [["grpc.max_connection_age_ms", "soon"]]
    host = HostProcess({"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, "grpc_arguments": arguments})
    assert host.exit_code() == 1
    assert host.errors == [
        "tpuserve: --grpc_channel_arguments: grpc.max_connection_age_ms expects a positive number, got 'soon'.\n"
    ]
