"""Tests for gRPC's channel arguments, in Envoy's configuration and on both hosts."""

from typing import Any

import grpc
import pytest

from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.arguments import apply_to_manager, unknown_to_envoy

BACKENDS = ["envoy", "python"]


def applied(*arguments: tuple[str, int | str]) -> dict[str, Any]:
    manager: dict[str, Any] = {"common_http_protocol_options": {}, "http2_protocol_options": {}}
    apply_to_manager(arguments, manager)
    return manager


@pytest.mark.parametrize(
    ("name", "value", "section", "expected"),
    [
        ("grpc.max_concurrent_streams", 7, "http2_protocol_options", {"max_concurrent_streams": 7}),
        (
            "grpc.max_connection_age_ms",
            2500,
            "common_http_protocol_options",
            {"max_connection_duration": "2.500s"},
        ),
        ("grpc.max_connection_idle_ms", 100, "common_http_protocol_options", {"idle_timeout": "0.100s"}),
        (
            "grpc.keepalive_time_ms",
            60000,
            "http2_protocol_options",
            {"connection_keepalive": {"interval": "60.000s", "timeout": "20.000s"}},
        ),
        (
            "grpc.keepalive_timeout_ms",
            5000,
            "http2_protocol_options",
            {"connection_keepalive": {"timeout": "5.000s"}},
        ),
    ],
)
def test_arguments_that_envoy_has_words_for(name: str, value: int, section: str, expected: dict[str, Any]) -> None:
    assert applied((name, value))[section] == expected


@pytest.mark.parametrize(("size", "kibibytes"), [(1, 1), (1024, 1), (1025, 2), (1 << 30, 8192)])
def test_metadata_is_counted_in_kibibytes(size: int, kibibytes: int) -> None:
    assert applied(("grpc.max_metadata_size", size))["max_request_headers_kb"] == kibibytes


def test_those_it_has_no_words_for_are_named() -> None:
    arguments = (("grpc.max_concurrent_streams", 1), ("grpc.no_such", 2), ("my.own", "x"))
    assert unknown_to_envoy(arguments) == ["grpc.no_such", "my.own"]


@pytest.mark.parametrize("value", ["soon", 0, -1])
def test_what_is_no_positive_number_is_refused(value: int | str) -> None:
    with pytest.raises(HostError, match=r"grpc\.max_connection_age_ms expects a positive number, got"):
        applied(("grpc.max_connection_age_ms", value))


# grpcio's thread that reports states may make another call after the channel has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_old_connections_are_closed_and_calls_go_on(backend: str) -> None:
    arguments = [["grpc.max_connection_age_ms", 100], ["grpc.max_connection_age_grace_ms", 5000]]
    with running(backend, grpc_arguments=arguments) as host, grpc.insecure_channel(host.grpc) as channel:
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        call = unary(channel, "Unary")
        while states.count(grpc.ChannelConnectivity.READY) < 2:
            # The channel becomes READY again with each new connection.
            assert call(b"x", wait_for_ready=True, timeout=PATIENCE_S) == b"x"


def test_envoy_says_what_it_cannot_do() -> None:
    with running("envoy", grpc_arguments=[["grpc.http2.max_ping_strikes", 0]]) as host:
        host.terminate()
        assert host.exit_code() == 0
    said = "tpuserve: grpc.http2.max_ping_strikes has no effect in Envoy. Use --host_backend=python for it."
    assert host.errors[0].strip() == said


def test_a_value_that_cannot_be_ends_the_start() -> None:
    arguments = [["grpc.max_connection_age_ms", "soon"]]
    host = HostProcess(
        "envoy", {"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, "grpc_arguments": arguments}
    )
    assert host.exit_code() == 1
    assert host.errors == [
        "tpuserve: --grpc_channel_arguments: grpc.max_connection_age_ms expects a positive number, got 'soon'.\n"
    ]
