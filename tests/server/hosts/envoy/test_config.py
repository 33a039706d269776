"""Tests for the generated configuration, as data and as Envoy itself reads it."""

import dataclasses
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tpuserve_server.hosts.application import MEBIBYTE, HostOptions
from tpuserve_server.hosts.envoy import process as envoy_process
from tpuserve_server.hosts.envoy.config import Embedding, bootstrap
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

EVERYWHERE = HostOptions(bind_address="127.0.0.1", grpc_port=0, rest_port=0, grpc_socket_path="/tmp/tpuserve-test.sock")
LIMITED = dataclasses.replace(EVERYWHERE, max_connections=7, max_requests_per_s=2.5, max_heap_bytes=1 << 30)

IDLE = """
async def app(scope, receive, send):
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})
"""


def configured(options: HostOptions) -> dict[str, Any]:
    embedding = Embedding(envoy_process.embedding_library(), "echo_application:asgi")
    config = bootstrap(options, embedding, Path("/run/tpuserve/admin.sock"))
    assert json.loads(json.dumps(config)) == config
    return config


def listener(options: HostOptions) -> dict[str, Any]:
    [only] = configured(options)["static_resources"]["listeners"]
    assert isinstance(only, dict)
    return only


def manager(options: HostOptions) -> dict[str, Any]:
    [chain] = listener(options)["filter_chains"]
    [network_filter] = chain["filters"]
    config: dict[str, Any] = network_filter["typed_config"]
    return config


def test_every_address_is_the_one_listeners() -> None:
    found = listener(EVERYWHERE)
    assert found["address"] == {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    assert [address["address"] for address in found["additional_addresses"]] == [
        {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        {"pipe": {"path": "/tmp/tpuserve-test.sock"}},
    ]
    assert found["enable_reuse_port"] is False


def test_second_server_may_share_the_ports() -> None:
    assert listener(dataclasses.replace(EVERYWHERE, reuse_port=True))["enable_reuse_port"] is True


@pytest.mark.parametrize(
    ("options", "address"),
    [
        (HostOptions(grpc_port=None, rest_port=1), {"socket_address": {"address": "0.0.0.0", "port_value": 1}}),
        (HostOptions(grpc_port=None, rest_port=None, grpc_socket_path="/s"), {"pipe": {"path": "/s"}}),
        (
            HostOptions(bind_address="::", grpc_port=1, rest_port=None),
            {"socket_address": {"address": "::", "port_value": 1, "ipv4_compat": True}},
        ),
    ],
)
def test_one_address_alone(options: HostOptions, address: dict[str, Any]) -> None:
    assert listener(options)["address"] == address
    assert listener(options)["additional_addresses"] == []


def test_nowhere_to_listen_is_an_error() -> None:
    with pytest.raises(HostError, match="no address to listen on"):
        HostOptions(grpc_port=None, rest_port=None)


def test_admin_is_on_a_private_socket_only() -> None:
    assert configured(EVERYWHERE)["admin"] == {"address": {"pipe": {"path": "/run/tpuserve/admin.sock", "mode": 0o600}}}


@pytest.mark.parametrize(("message", "body"), [(1, 100 * MEBIBYTE), (100 * MEBIBYTE, 1)])
def test_buffer_is_larger_than_what_the_application_allows(message: int, body: int) -> None:
    options = HostOptions(max_message_bytes=message, max_body_bytes=body)
    [host] = manager(options)["route_config"]["virtual_hosts"]
    assert host["request_body_buffer_limit"] > 100 * MEBIBYTE


def test_envoy_holds_little_of_a_response_that_is_not_read() -> None:
    options = HostOptions(grpc_port=1, rest_port=2, grpc_socket_path="/s", write_timeout_s=2.5)
    found = listener(options)
    assert found["per_connection_buffer_limit_bytes"] < MEBIBYTE
    assert manager(options)["http2_protocol_options"]["initial_stream_window_size"] < MEBIBYTE
    assert manager(options)["stream_flush_timeout"] == "2.5s"
    # The option is of TCP, and a UNIX socket would refuse it.
    [option] = found["socket_options"]
    assert option["name"] == socket.TCP_NOTSENT_LOWAT
    assert [bool(each["socket_options"]["socket_options"]) for each in found["additional_addresses"]] == [True, False]


def test_streams_may_stay_open_but_requests_must_come_in() -> None:
    config = manager(EVERYWHERE)
    assert config["stream_idle_timeout"] == "0s"
    assert config["request_timeout"] == "300s"
    assert config["request_headers_timeout"] == "10s"
    assert config["http2_protocol_options"]["max_concurrent_streams"] == 1024
    assert config["http2_protocol_options"]["max_header_field_size_kb"] <= config["max_request_headers_kb"]
    assert "access_log" not in config


def test_clients_may_reset_all_streams_of_a_connection_but_not_without_end() -> None:
    limits = manager(EVERYWHERE)["http2_protocol_options"]
    assert limits["stream_reset_burst"] == 2 * limits["max_concurrent_streams"]
    assert limits["stream_reset_rate"] == 2048


def test_tls_is_the_whole_listeners() -> None:
    [chain] = listener(HostOptions(tls=TlsOptions("key", "chain")))["filter_chains"]
    socket = chain["transport_socket"]["typed_config"]
    assert socket["require_client_certificate"] is False
    assert socket["common_tls_context"]["alpn_protocols"] == ["h2", "http/1.1"]
    [source] = socket["common_tls_context"]["tls_certificate_sds_secret_configs"]
    assert source["sds_config"]["path_config_source"] == {"path": "/run/tpuserve/server.json"}
    assert "validation_context_sds_secret_config" not in socket["common_tls_context"]
    assert chain["transport_socket_connect_timeout"] == "10s"


def test_mutual_tls_asks_for_a_certificate_of_the_authority() -> None:
    [chain] = listener(HostOptions(tls=TlsOptions("key", "chain", "authority")))["filter_chains"]
    socket = chain["transport_socket"]["typed_config"]
    assert socket["require_client_certificate"] is True
    source = socket["common_tls_context"]["validation_context_sds_secret_config"]
    assert source["sds_config"]["path_config_source"] == {"path": "/run/tpuserve/client_ca.json"}


def test_the_configuration_contains_no_key() -> None:
    config = json.dumps(configured(HostOptions(tls=TlsOptions("private text", "chain", "authority"))))
    assert "private text" not in config


def test_without_tls_there_is_no_trace_of_it() -> None:
    [chain] = listener(EVERYWHERE)["filter_chains"]
    assert set(chain) == {"filters"}


def test_envoy_accepts_it(tmp_path: Path) -> None:
    """Validate with Envoy, which also loads the application: here one that only starts and stops."""
    (tmp_path / "idle_application.py").write_text(IDLE)
    path = tmp_path / "envoy.json"
    embedding = Embedding(envoy_process.embedding_library(), "idle_application:app")
    path.write_text(json.dumps(bootstrap(LIMITED, embedding, tmp_path / "admin.sock")))
    environment = envoy_process.child_environment({})
    environment["PYTHONPATH"] += f":{tmp_path}"
    checked = subprocess.run(
        [envoy_process.envoy_binary(), "--mode", "validate", "--disable-hot-restart", "--config-path", path],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr


def test_envoy_returns_freed_memory() -> None:
    returned = configured(EVERYWHERE)["memory_allocator_manager"]
    assert returned == {"bytes_to_release": 128 * MEBIBYTE, "memory_release_interval": "1s"}
