"""Tests for the limits of a real Envoy: the share that it refuses, and the rate of inference requests."""

import dataclasses
import http.client
from collections.abc import AsyncIterator
from contextlib import closing
from email.message import Message
from pathlib import Path

import pytest

from tests.server.hosts.plain_envoy import plain_envoy
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.overload import overload_manager, rate_limit
from tpuserve_server.hosts.envoy.shedding_filters import shedding_filters
from tpuserve_server.hosts.inference_paths import OVERLOADED

OPTIONS = HostOptions(bind_address="127.0.0.1", grpc_port=0, rest_port=None, max_requests_per_s=5)
PREDICT = "/tensorflow.serving.PredictionService/Predict"
CALL = {"content-type": "application/grpc", "grpc-timeout": "1S"}
# The status of plain_envoy's response, which is no gRPC message.
PASSED = "2"
REQUEST = {"x-tpuserve-timeout-ms": "1000"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[EnvoyAdmin]:
    filters = [*rate_limit(OPTIONS), *shedding_filters()]
    with plain_envoy(OPTIONS, tmp_path, filters) as path:
        admin = EnvoyAdmin(path)
        await until(admin.is_live)
        yield admin


def ask(admin: EnvoyAdmin, path: str, headers: dict[str, str], method: str = "POST") -> tuple[int, Message, str]:
    """Return the status, the headers and the body of the response."""
    address = admin.listening(OPTIONS).grpc
    assert address is not None
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request(method, path, b"", headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


async def test_the_share_covers_inference_with_a_timeout(admin: EnvoyAdmin) -> None:
    admin.refuse(100)
    status, headers, _ = ask(admin, PREDICT, CALL)
    assert (status, headers["grpc-status"]) == (200, "8")
    assert headers["grpc-message"] == OVERLOADED
    assert headers["grpc-retry-pushback-ms"] == "200"
    status, headers, body = ask(admin, "/v1/models/m:predict", REQUEST)
    assert (status, headers["retry-after"]) == (429, "1")
    assert OVERLOADED in body
    assert ask(admin, "/grpc.health.v1.Health/Check", CALL)[0] == 200
    assert ask(admin, "/v1/models/m:predict", {})[0] == 200
    assert admin.refused() == 2
    admin.refuse(0)
    assert ask(admin, PREDICT, CALL)[1]["grpc-status"] == PASSED


async def test_the_rate_limit_covers_inference_alone(admin: EnvoyAdmin) -> None:
    found = [ask(admin, PREDICT, CALL)[1]["grpc-status"] for _ in range(40)]
    assert found[:5] == [PASSED] * 5
    assert "8" in found
    assert {ask(admin, "/readyz", {}, "GET")[0] for _ in range(10)} == {200}


def test_the_heap_has_a_limit_only_on_request() -> None:
    assert "actions" not in overload_manager(OPTIONS)
    limited = overload_manager(dataclasses.replace(OPTIONS, max_heap_bytes=1 << 30))
    assert [action["name"].rpartition(".")[2] for action in limited["actions"]] == [
        "reduce_timeouts",
        "stop_accepting_requests",
    ]
