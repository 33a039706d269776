"""Tests for trace settings, log settings and CUDA shared memory: readable, and refused when a request changes them."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.administered_server import AdministeredServer
from tpuserve_formats.messages.oip import (
    CudaSharedMemoryRegisterRequest,
    CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse,
    CudaSharedMemoryUnregisterRequest,
    CudaSharedMemoryUnregisterResponse,
    LogSettingsRequest,
    LogSettingsResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented

TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def trace_request(**settings: list[str]) -> TraceSettingRequest:
    request = TraceSettingRequest()
    for name, values in settings.items():
        # An empty list restores the default.
        request.settings[name].value.extend(values)
    return request


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path_factory.mktemp("models")) as server:
        yield server


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v2/trace/setting", TRACE), ("/v2/models/a/trace/setting", TRACE), ("/v2/logging", LOG)],
)
async def test_settings_are_read_by_get_and_by_an_empty_post(
    server: AdministeredServer, path: str, expected: dict[str, object]
) -> None:
    assert (await server.get(path)).json() == expected
    assert (await server.post(path)).json() == expected
    # The same values, and null for the default.
    body = {**expected, "unknown": 1, next(reversed(expected)): None}
    answer = await server.post(path, body)
    assert (answer.status_code, answer.json()) == (200, expected)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, "setting 'trace_level' can not be updated"),
        ("/v2/trace/setting", {"trace_rate": "1"}, "setting 'trace_rate' can not be updated"),
        ("/v2/trace/setting", {"trace_file": "/t"}, "trace file location can not be updated through network protocol"),
        ("/v2/logging", {"log_info": False}, "setting 'log_info' can not be updated through network protocol"),
        ("/v2/logging", {"log_file": "/t"}, "log file location can not be updated through network protocol"),
    ],
)
async def test_a_change_over_rest_is_refused(
    server: AdministeredServer, path: str, body: dict[str, object], message: str
) -> None:
    answer = await server.post(path, body)
    assert answer.status_code == 501
    assert answer.json()["error"].startswith(message)
    assert (await server.get(path)).json() == (LOG if "logging" in path else TRACE)


async def test_trace_settings_of_an_unknown_model_are_refused(server: AdministeredServer) -> None:
    answer = await server.get("/v2/models/c/trace/setting")
    assert (answer.status_code, answer.json()) == (404, {"error": "Request for unknown model: 'c' is not found"})


async def test_settings_over_grpc(server: AdministeredServer) -> None:
    request = trace_request(trace_rate=["1000"], trace_level=[])
    trace = await server.call("TraceSetting", request, TraceSettingResponse)
    assert {name: list(setting.value) for name, setting in trace.settings.items()} == {
        name: value if isinstance(value, list) else [value] for name, value in TRACE.items()
    }
    log = await server.call("LogSettings", LogSettingsRequest(), LogSettingsResponse)
    found: dict[str, Any] = {
        name: getattr(setting, str(setting.WhichOneof("parameter_choice"))) for name, setting in log.settings.items()
    }
    assert found == LOG


async def test_a_change_over_grpc_is_refused(server: AdministeredServer) -> None:
    several, one = trace_request(trace_rate=["1", "2"]), trace_request(trace_rate=["1"])
    with pytest.raises(Unimplemented, match="'trace_rate' can not be updated"):
        await server.call("TraceSetting", one, TraceSettingResponse)
    with pytest.raises(InvalidArgument, match="expect only 1 value for 'trace_rate'"):
        await server.call("TraceSetting", several, TraceSettingResponse)
    log = LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 1
    with pytest.raises(Unimplemented, match="'log_verbose_level' can not be updated"):
        await server.call("LogSettings", log, LogSettingsResponse)


async def test_log_settings_follow_the_level_of_the_log(
    server: AdministeredServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    assert (await server.get("/v2/logging")).json() == {**LOG, "log_info": False, "log_warning": False}


async def test_there_is_no_cuda_shared_memory(server: AdministeredServer) -> None:
    path = "/v2/cudasharedmemory"
    assert (await server.get(f"{path}/status")).json() == []
    assert (await server.post(f"{path}/unregister")).status_code == 200
    assert (await server.post(f"{path}/region/r/unregister")).status_code == 200
    refused = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    answer = await server.post(f"{path}/region/r/register", {"raw_handle": {"b64": "AA=="}, "byte_size": 1})
    assert (answer.status_code, answer.json()) == (400, {"error": refused})
    assert (await server.post(f"{path}/register")).status_code == 400
    status = await server.call(
        "CudaSharedMemoryStatus", CudaSharedMemoryStatusRequest(), CudaSharedMemoryStatusResponse
    )
    assert not status.regions
    await server.call(
        "CudaSharedMemoryUnregister", CudaSharedMemoryUnregisterRequest(), CudaSharedMemoryUnregisterResponse
    )
    request = CudaSharedMemoryRegisterRequest(name="r")
    with pytest.raises(InvalidArgument, match=refused):
        await server.call("CudaSharedMemoryRegister", request, CudaSharedMemoryStatusResponse)


async def test_the_server_lists_its_extensions(server: AdministeredServer) -> None:
    extensions = (await server.get("/v2")).json()["extensions"]
    assert {"model_repository", "model_configuration", "statistics", "trace", "logging"} <= {*extensions}
    assert "system_shared_memory" not in extensions
