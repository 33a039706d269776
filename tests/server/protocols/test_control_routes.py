"""Every method and route of the server is control or data. A new one fails here until it is classified."""

import re
from typing import Final

import httpx
import pytest

from tpuserve_formats.messages.oip import LogSettingsRequest, TraceSettingRequest
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied, ServingError
from tpuserve_server.protocols.oip_rest import route as oip
from tpuserve_server.protocols.rpc import CallContext, GuardedStream, GuardedUnary
from tpuserve_server.protocols.tf_rest import route as tf
from tpuserve_server.startup.app import Server, build
from tpuserve_server.startup.validation import read_settings

STRANGER: Final = "10.1.2.3"
HTTP_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")

CONTROL_METHODS: Final = {
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    "/tensorflow.ProfilerService/Profile",
    "/tensorflow.ProfilerService/Terminate",
    "/inference.GRPCInferenceService/RepositoryModelLoad",
    "/inference.GRPCInferenceService/RepositoryModelUnload",
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
    "/inference.GRPCInferenceService/SystemSharedMemoryRegister",
    "/inference.GRPCInferenceService/SystemSharedMemoryUnregister",
}
# Control if the message has settings.
SETTINGS_METHODS: Final = {
    "/inference.GRPCInferenceService/LogSettings",
    "/inference.GRPCInferenceService/TraceSetting",
}
DATA_METHODS: Final = {
    "/tensorflow.serving.PredictionService/Predict",
    "/tensorflow.serving.PredictionService/Classify",
    "/tensorflow.serving.PredictionService/Regress",
    "/tensorflow.serving.PredictionService/MultiInference",
    "/tensorflow.serving.PredictionService/GetModelMetadata",
    "/tensorflow.serving.ModelService/GetModelStatus",
    # Not implemented: it only answers that.
    "/tensorflow.ProfilerService/Monitor",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStatistics",
    "/inference.GRPCInferenceService/RepositoryIndex",
    # There are no such regions: these answer the same to each client.
    "/inference.GRPCInferenceService/CudaSharedMemoryStatus",
    "/inference.GRPCInferenceService/CudaSharedMemoryRegister",
    "/inference.GRPCInferenceService/CudaSharedMemoryUnregister",
    "/grpc.health.v1.Health/Check",
}
DATA_STREAMS: Final = {
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

# A method and a path of each action. `m` is a model, `r` a region, `x` a repository.
CONTROL_ROUTES: Final = {
    ("POST", "/v2/repository/models/m/load"): oip.Action.MODEL_LOAD,
    ("POST", "/v2/repository/x/models/m/load"): oip.Action.MODEL_LOAD,
    ("POST", "/v2/repository/models/m/unload"): oip.Action.MODEL_UNLOAD,
    ("POST", "/v2/repository/x/models/m/unload"): oip.Action.MODEL_UNLOAD,
    ("POST", "/v2/logging"): oip.Action.LOG_SETTINGS,
    ("POST", "/v2/trace/setting"): oip.Action.TRACE_SETTING,
    ("POST", "/v2/models/m/trace/setting"): oip.Action.TRACE_SETTING,
    ("GET", "/v2/systemsharedmemory/status"): oip.Action.SHARED_MEMORY_STATUS,
    ("GET", "/v2/systemsharedmemory/region/r/status"): oip.Action.SHARED_MEMORY_STATUS,
    ("POST", "/v2/systemsharedmemory/region/r/register"): oip.Action.SHARED_MEMORY_REGISTER,
    ("POST", "/v2/systemsharedmemory/register"): oip.Action.SHARED_MEMORY_REGISTER,
    ("POST", "/v2/systemsharedmemory/region/r/unregister"): oip.Action.SHARED_MEMORY_UNREGISTER,
    ("POST", "/v2/systemsharedmemory/unregister"): oip.Action.SHARED_MEMORY_UNREGISTER,
}
DATA_ROUTES: Final = {
    ("POST", "/v2/models/m/infer"): oip.Action.INFER,
    ("POST", "/v2/models/m/versions/1/infer"): oip.Action.INFER,
    ("GET", "/v2/models/m/ready"): oip.Action.MODEL_READY,
    ("GET", "/v2/models/m/versions/1/ready"): oip.Action.MODEL_READY,
    ("GET", "/v2/models/m"): oip.Action.MODEL_METADATA,
    ("GET", "/v2/models/m/versions/1"): oip.Action.MODEL_METADATA,
    ("GET", "/v2/models/m/config"): oip.Action.MODEL_CONFIG,
    ("GET", "/v2/models/m/versions/1/config"): oip.Action.MODEL_CONFIG,
    ("GET", "/v2/models/stats"): oip.Action.MODEL_STATISTICS,
    ("GET", "/v2/models/m/stats"): oip.Action.MODEL_STATISTICS,
    ("GET", "/v2/models/m/versions/1/stats"): oip.Action.MODEL_STATISTICS,
    ("GET", "/v2/models/m/trace/setting"): oip.Action.TRACE_SETTING,
    ("GET", "/v2/trace/setting"): oip.Action.TRACE_SETTING,
    ("GET", "/v2/logging"): oip.Action.LOG_SETTINGS,
    ("POST", "/v2/repository/index"): oip.Action.REPOSITORY_INDEX,
    ("POST", "/v2/repository/x/index"): oip.Action.REPOSITORY_INDEX,
    ("GET", "/v2/cudasharedmemory/status"): oip.Action.CUDA_STATUS,
    ("GET", "/v2/cudasharedmemory/region/r/status"): oip.Action.CUDA_STATUS,
    ("POST", "/v2/cudasharedmemory/region/r/register"): oip.Action.CUDA_REGISTER,
    ("POST", "/v2/cudasharedmemory/register"): oip.Action.CUDA_REGISTER,
    ("POST", "/v2/cudasharedmemory/region/r/unregister"): oip.Action.CUDA_UNREGISTER,
    ("POST", "/v2/cudasharedmemory/unregister"): oip.Action.CUDA_UNREGISTER,
    ("GET", "/v2/health/live"): oip.Action.SERVER_LIVE,
    ("GET", "/v2/health/ready"): oip.Action.SERVER_READY,
    ("GET", "/v2"): oip.Action.SERVER_METADATA,
    ("GET", "/v2/"): oip.Action.SERVER_METADATA,
    ("POST", "/v1/models/m:predict"): tf.Action.PREDICT,
    ("POST", "/v1/models/m/versions/1:predict"): tf.Action.PREDICT,
    ("POST", "/v1/models/m/labels/l:predict"): tf.Action.PREDICT,
    ("POST", "/v1/models/m:classify"): tf.Action.CLASSIFY,
    ("POST", "/v1/models/m/versions/1:classify"): tf.Action.CLASSIFY,
    ("POST", "/v1/models/m/labels/l:classify"): tf.Action.CLASSIFY,
    ("POST", "/v1/models/m:regress"): tf.Action.REGRESS,
    ("POST", "/v1/models/m/versions/1:regress"): tf.Action.REGRESS,
    ("POST", "/v1/models/m/labels/l:regress"): tf.Action.REGRESS,
    ("GET", "/v1/models/m"): tf.Action.STATUS,
    ("GET", "/v1/models/m/versions/1"): tf.Action.STATUS,
    ("GET", "/v1/models/m/labels/l"): tf.Action.STATUS,
    ("GET", "/v1/models/m/metadata"): tf.Action.METADATA,
    ("GET", "/v1/models/m/versions/1/metadata"): tf.Action.METADATA,
    ("GET", "/v1/models/m/labels/l/metadata"): tf.Action.METADATA,
    ("GET", "/v1/models"): tf.Action.LIST,
    ("OPTIONS", "/v1/models"): tf.Action.PREFLIGHT,
}
OPERATIONS: Final = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/debug/status",
    "/debug/slow",
    "/console",
    "/console/static/index.html",
    "/openapi.json",
}
# Vertex AI's routes, which are aliases of two routes above.
ALIASES: Final = {"/vertex/predict", "/vertex/health"}
VALUES: Final = {"model": "m", "version": "1", "label": "l", "region": "r", "repository": "x", "name": "m"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Return the whole server, which loads nothing."""
    base_path = tmp_path_factory.mktemp("m")
    settings = read_settings(
        model_name="m",
        model_base_path=str(base_path),
        shared_memory_prefix="tpuserve",
        vertex_predict_route="/vertex/predict",
        vertex_health_route="/vertex/health",
    )
    return build(settings)


async def is_refused(server: Server, path: str, body: bytes) -> bool:
    method = server.rpc[path]
    assert isinstance(method, GuardedUnary)
    context = CallContext(Deadline.never(), {}, None, lambda: STRANGER)
    handle = await method.admit(context)
    try:
        await handle(body, context)
    except PermissionDenied:
        return True
    except ServingError:
        return False
    return False


async def status(server: Server, method: str, path: str) -> int:
    transport = httpx.ASGITransport(server.rest, client=(STRANGER, 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return (await client.request(method, path)).status_code


def test_each_method_is_classified(server: Server) -> None:
    streams = {path for path, method in server.rpc.items() if isinstance(method, GuardedStream)}
    assert streams == DATA_STREAMS
    assert server.rpc.keys() - streams == CONTROL_METHODS | SETTINGS_METHODS | DATA_METHODS


@pytest.mark.parametrize("path", sorted(CONTROL_METHODS))
async def test_strangers_cannot_call_control_methods(server: Server, path: str) -> None:
    assert await is_refused(server, path, b"")
    assert await is_refused(server, path, b"\xff")


@pytest.mark.parametrize("path", sorted(DATA_METHODS))
async def test_strangers_can_call_data_methods(server: Server, path: str) -> None:
    assert not await is_refused(server, path, b"")


@pytest.mark.parametrize(
    ("path", "request_class"),
    [*zip(sorted(SETTINGS_METHODS), (LogSettingsRequest, TraceSettingRequest), strict=True)],
)
async def test_strangers_can_read_settings_and_not_set_them(server: Server, path: str, request_class: type) -> None:
    change = request_class()
    change.settings["log_verbose_level"].SetInParent()
    assert not await is_refused(server, path, b"")
    assert await is_refused(server, path, change.SerializeToString())
    assert await is_refused(server, path, b"\xff")


def test_each_action_of_rest_is_classified() -> None:
    for routes in (CONTROL_ROUTES, DATA_ROUTES):
        for (method, path), action in routes.items():
            parse = tf.parse_route if path.startswith("/v1") else oip.parse_route
            assert parse(method, path.encode()).action is action
    assert {*CONTROL_ROUTES.values(), *DATA_ROUTES.values()} == {*oip.Action, *tf.Action}


async def test_each_path_of_the_openapi_document_is_classified(server: Server) -> None:
    transport = httpx.ASGITransport(server.rest)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        document = (await client.get("/openapi.json")).json()
    listed = {
        (method.upper(), re.sub(r"\{(\w+)\}", lambda found: VALUES[found[1]], path))
        for path, methods in document["paths"].items()
        for method in methods
    }
    operations = {("GET", path) for path in OPERATIONS}
    assert listed <= CONTROL_ROUTES.keys() | DATA_ROUTES.keys() | operations


async def test_strangers_can_use_data_routes_alone_by_any_http_method(server: Server) -> None:
    paths = {path for _, path in (*CONTROL_ROUTES, *DATA_ROUTES)} | OPERATIONS | ALIASES
    for path in sorted(paths):
        for method in HTTP_METHODS:
            # HEAD reads what GET reads.
            expected = ("GET" if method == "HEAD" else method, path) in CONTROL_ROUTES
            assert (await status(server, method, path) == 403) is expected, f"{method} {path}"


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_pages_of_other_sites_cannot_use_control_routes(server: Server, headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(server.rest, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for method, path in sorted(CONTROL_ROUTES):
            response = await client.request(method, path, headers=headers)
            assert response.status_code == 403, f"{method} {path}"
            assert "a web page that this server has not sent" in response.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/V2/repository/models/m/load"),
        ("POST", "/v2/repository/models/m%2Fx/load"),
        ("POST", "/v2/repository/models/m/load?x=1"),
        ("POST", "/v2//repository/models/m/load"),
        ("POST", "/v2/repository/models/m/load/"),
        ("POST", "/v2/repository/models/../models/m/load"),
        ("POST", "/v2/repository/models/m/%6coad"),
        ("GET", "/v2/repository/models/m/load"),
        ("POST", "/vertex/predict/../../v2/repository/models/m/load"),
    ],
)
async def test_other_spellings_of_a_control_route_are_refused_or_unknown(
    server: Server, method: str, path: str
) -> None:
    assert await status(server, method, path) in (400, 403, 404, 405)
