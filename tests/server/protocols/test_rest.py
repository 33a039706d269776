"""Tests for the REST application over a fake service, called through ASGI like by a host."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest
from openapi_spec_validator import validate

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished, half_plus_two
from tpuserve_server.core.terms.errors import (
    Code,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    TooLate,
    Unavailable,
    Unimplemented,
)
from tpuserve_server.core.terms.types import (
    CacheOutcome,
    Precision,
    ServableId,
    Signature,
    State,
    TensorSpec,
    VersionStatus,
)
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.tf_rest import v1

PREDICT = "/v1/models/m:predict"
ROWS = b'{"instances": [1, 3]}'
LIMIT = 1000


class Rest:
    """The application, and a client over ASGI that raises the application's exceptions."""

    def __init__(self, render: Any = lambda: ([b"requests 1\n"], "text/plain; version=1.0.0")) -> None:  # noqa: ANN401 (a callable that may raise)
        self.service = FakeService()
        self.metrics = FakeMetrics()
        options = RestOptions(max_body_bytes=LIMIT, timeout_s=2.5)
        self.clock = FakeClock(now_s=10)
        self.app = rest_app(self.service, self.metrics, self.clock, render, options)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://server")

    async def post(self, path: str = PREDICT, body: bytes = ROWS) -> httpx.Response:
        return await self.client.post(path, content=body)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def messages(self, *received: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> list[Any]:
        """Call the application with exactly these messages, and return the messages that it sends."""
        waiting = iter(received)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return next(waiting)

        async def send(message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": list(headers)}
        await self.app(scope, receive, send)
        return sent


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    made = Rest()
    async with made.client:
        yield made


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


DISCONNECT = {"type": "http.disconnect"}


def error_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    return str(response.json()["error"])


async def test_rows_are_answered_with_predictions_and_version(rest: Rest) -> None:
    response = await rest.post()
    assert (response.status_code, response.content) == (200, b'{"predictions":[2.5,3.5]}')
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-tpuserve-model-version"] == "7"
    assert int(response.headers["content-length"]) == len(response.content)
    assert rest.metrics.finished == [Finished("m", "Predict", "rest", Code.OK, 0.0)]


@pytest.mark.parametrize(("cache", "header"), [("", None), ("hit", "hit"), ("miss", "miss")])
async def test_a_header_shows_whether_the_cache_answered(rest: Rest, cache: CacheOutcome, header: str | None) -> None:
    rest.service.cache = cache
    assert (await rest.post()).headers.get("x-tpuserve-cache") == header


@pytest.mark.parametrize("path", [PREDICT, "/V1/MODELS/m/versions/7:PREDICT", "/v1/models/m/labels/l:predict?x=1"])
async def test_columns_are_answered_with_outputs_on_every_path(rest: Rest, path: str) -> None:
    response = await rest.post(path, b'{"inputs": {"x": 1}}')
    assert (response.status_code, response.content) == (200, b'{"outputs":2.5}')


async def test_large_bodies_are_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    options = RestOptions(max_body_bytes=1 << 30)
    app = rest_app(service, FakeMetrics(), FakeClock(), lambda: ([b""], ""), options)
    decoding_threads = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def decode(*arguments: Any) -> Any:  # noqa: ANN401 - passed through
            decoding_threads.append(threading.current_thread())
            return function(*arguments)

        return decode

    here, beside = ("read_quickly", "decode_quickly"), ("parse_predict_body", "decode_predict_inputs")
    for name in (*here, *beside):
        monkeypatch.setattr(v1, name, recorded(getattr(v1, name)))
    padding = b" " * (1 << 20)
    texts = b'{"instances":[%b"x"]}' % (b'"", ' * 10_000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        for body, is_here in ((ROWS, True), (ROWS + padding, False)):
            decoding_threads.clear()
            response = await client.post(PREDICT, content=body)
            assert response.content == b'{"predictions":[2.5,3.5]}'
            assert len(decoding_threads) == 2
            assert all((thread is threading.main_thread()) == is_here for thread in decoding_threads)
        refused = await client.post(PREDICT, content=b'{"instances": ["x"]}' + padding)
        assert refused.status_code == 400
        decoding_threads.clear()
        refused = await client.post(PREDICT, content=texts)
        assert refused.status_code == 400
        # Each step is tried here first.
        assert [thread is threading.main_thread() for thread in decoding_threads] == [True, False, True, False]
    assert all(acquired.released for acquired in service.acquired)


async def test_path_label_signature_and_timeout_reach_the_service(rest: Rest) -> None:
    await rest.post("/v1/models/m/labels/l:predict", b'{"signature_name": "serving_default", "instances": [1]}')
    (request,) = rest.service.requests
    assert (request.spec.version_label, request.spec.signature_name) == ("l", "serving_default")
    assert request.deadline.at_s == 12.5
    assert request.inputs["x"].dtype == np.float32


async def test_encoded_names_are_decoded_once(rest: Rest) -> None:
    response = await rest.post("/v1/models/a%2Fb%252F:predict")
    assert error_of(response) == "Servable not found for request: Latest(a/b%2F)"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (PREDICT, b"", 400, "JSON Parse error: The document is empty"),
        (PREDICT, b"instances = [1, 2]", 400, "JSON Parse error: Invalid value."),
        (PREDICT, b'{"instances": ["x"]}', 400, "Failed to process element: 0 of 'instances' list."),
        (
            PREDICT,
            b'{"signature_name": "s", "instances": [1]}',
            400,
            'Serving signature name: "s" not found in signature def',
        ),
        ("/v1/models/n:predict", ROWS, 404, "Servable not found for request: Latest(n)"),
        ("/v1/models/m/versions/9:predict", ROWS, 404, "Servable not found for request: Specific(m, 9)"),
        (f"/v1/models/m/versions/{2**64}:predict", ROWS, 400, f"Failed to convert version: {2**64} to numeric."),
        ("/v1/foo", ROWS, 400, "Malformed request: POST /v1/foo"),
        (PREDICT, b" " * (LIMIT + 1), 413, f"Request body is larger than the limit of {LIMIT} bytes"),
    ],
)
async def test_bad_requests_have_upstreams_status_and_text(
    rest: Rest, path: str, body: bytes, status: int, text: str
) -> None:
    response = await rest.post(path, body)
    assert response.status_code == status
    assert error_of(response).startswith(text)
    assert len(rest.metrics.finished) == 1


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (Unavailable("queue full"), 503, "1"),
        (ResourceExhausted("quota"), 429, "1"),
        (TooLate("in 2.1 s", 2.1), 429, "3"),
        (TooLate("in 1 ms", 0.001), 429, "1"),
        (DeadlineExceeded("late"), 504, None),
        (Internal("model"), 500, None),
        (Unimplemented("complex"), 501, None),
        (InvalidArgument("shape"), 400, None),
        (NotFound("unloaded"), 404, None),
    ],
)
async def test_what_the_service_refuses_is_told(
    rest: Rest, error: ServingError, status: int, retry: str | None
) -> None:
    rest.service.fault = error
    response = await rest.post()
    assert (response.status_code, error_of(response)) == (status, error.message)
    assert response.headers.get("retry-after") == retry
    assert rest.metrics.finished[0].code == error.code
    responses = rest.app.openapi()["paths"]["/v1/models/{model}:predict"]["post"]["responses"]
    assert responses[str(status)]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")


@pytest.mark.parametrize(
    ("headers", "at_s"),
    # The server's limit is 2.5 s, and the clock shows 10 s.
    [({}, 12.5), ({"X-Tpuserve-Timeout-Ms": "250"}, 10.25), ({"X-Tpuserve-Timeout-Ms": "60000"}, 12.5)],
)
async def test_the_shorter_timeout_counts(rest: Rest, headers: dict[str, str], at_s: float) -> None:
    assert (await rest.client.post(PREDICT, content=ROWS, headers=headers)).status_code == 200
    assert [request.deadline.at_s for request in rest.service.requests] == [at_s]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, b'{"instances": ["a"]}'),
        ("/v2/models/m/infer", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [9], "data": [1]}]}'),
    ],
)
async def test_a_request_that_would_be_late_is_refused_before_it_is_decoded(rest: Rest, path: str, body: bytes) -> None:
    assert (await rest.post(path, body)).status_code == 400
    rest.service.busy_until_s = 100.0
    response = await rest.post(path, body)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")


async def test_the_clients_timeout_counts_from_the_arrival_of_the_headers(rest: Rest) -> None:
    headers = [(b"x-tpuserve-timeout-ms", b"2000")]
    scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": headers}

    async def receive() -> dict[str, Any]:
        rest.clock.now_s += 1.0
        return chunk(ROWS)

    async def send(message: Any) -> None:  # noqa: ANN401 (ASGI's messages)
        assert message["type"].startswith("http.response")

    await rest.app(scope, receive, send)
    # The clock showed 10 s.
    assert [request.deadline.at_s for request in rest.service.requests] == [12.0]


@pytest.mark.parametrize("header", ["x-tpuserve-timeout-ms", "x-tpuserve-priority"])
async def test_a_wrong_header_is_told_before_the_body_is_read(rest: Rest, header: str) -> None:
    start, body = await rest.messages(headers=((header.encode(), b"-1"),))
    assert start["status"] == 400
    assert json.loads(body["body"])["error"].startswith(f"{header} must be")


async def test_unexpected_error_is_logged_and_hidden(rest: Rest, caplog: pytest.LogCaptureFixture) -> None:
    rest.service.fault = ZeroDivisionError("secret /path")
    with caplog.at_level(logging.ERROR):
        response = await rest.post()
    assert (response.status_code, error_of(response)) == (500, "Internal error")
    assert "secret /path" in caplog.text
    assert rest.metrics.finished[0].code == Code.INTERNAL


@pytest.mark.parametrize(("method", "path"), [("PUT", PREDICT), ("GET", PREDICT), ("DELETE", "/v1/models/m")])
async def test_other_methods_are_malformed_as_upstream(rest: Rest, method: str, path: str) -> None:
    response = await rest.client.request(method, path)
    assert (response.status_code, error_of(response)) == (400, f"Malformed request: {method} {path}")
    assert rest.metrics.finished[0].method == "Unknown"


async def test_body_in_chunks_is_put_together(rest: Rest) -> None:
    chunks = [chunk(ROWS[index : index + 1], more=True) for index in range(len(ROWS))]
    start, body = await rest.messages(*chunks, chunk(b""), DISCONNECT)
    assert start["status"] == 200
    assert body["body"] == b'{"predictions":[2.5,3.5]}'


async def test_body_is_not_read_past_the_limit(rest: Rest) -> None:
    # A request for a third chunk would raise StopIteration.
    start, _ = await rest.messages(chunk(b" " * LIMIT, more=True), chunk(b" ", more=True))
    assert start["status"] == 413


async def test_body_in_countless_chunks_is_refused(rest: Rest) -> None:
    start, body = await rest.messages(*[chunk(b"", more=True)] * 65_536, chunk(b"", more=True))
    assert start["status"] == 400
    assert json.loads(body["body"]) == {"error": "Request body has more than 65536 chunks"}


async def test_one_chunk_over_the_limit_is_refused(rest: Rest) -> None:
    start, _ = await rest.messages(chunk(b" " * (LIMIT + 1)))
    assert start["status"] == 413


async def test_declared_length_over_the_limit_is_refused_unread(rest: Rest) -> None:
    start, _ = await rest.messages(headers=((b"host", b"h"), (b"content-length", b"1001")))
    assert start["status"] == 413


async def test_declared_length_that_is_no_number_is_left_to_the_body(rest: Rest) -> None:
    start, _ = await rest.messages(chunk(ROWS), headers=((b"content-length", b"9" * 10_000),))
    assert start["status"] == 200


async def test_client_gone_during_the_body_gets_nothing(rest: Rest) -> None:
    for messages in ([DISCONNECT], [chunk(b"{", more=True), DISCONNECT]):
        assert await rest.messages(*messages) == []
        assert rest.metrics.finished.pop().code == Code.CANCELLED
    assert rest.service.requests == []


async def test_client_gone_while_waiting_cancels_the_prediction(rest: Rest) -> None:
    rest.service.gate.clear()
    assert await rest.messages(chunk(ROWS), DISCONNECT) == []
    assert rest.service.cancelled == 1
    assert rest.metrics.finished == [Finished("m", "Predict", "rest", Code.CANCELLED, 0.0)]


async def test_server_that_says_nothing_new_while_waiting_is_not_asked_again(rest: Rest) -> None:
    rest.service.gate.clear()
    task = asyncio.create_task(rest.messages(chunk(ROWS), chunk(b"")))
    await rest.service.waiting.wait()
    # Long enough for the watch to start and to read the second message.
    for _ in range(5):
        await asyncio.sleep(0)
    rest.service.gate.set()
    start, _ = await task
    assert start["status"] == 200


async def test_cancelled_by_the_host_is_not_mistaken_for_a_client_gone(rest: Rest) -> None:
    rest.service.gate.clear()
    task = asyncio.create_task(rest.post())
    await rest.service.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rest.metrics.finished[0].code == Code.CANCELLED


async def test_status_has_kserves_fields_only_on_request() -> None:
    options = RestOptions(reports_readiness=True)
    app = rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b""], ""), options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        document = (await client.get("/v1/models/m")).json()
    assert list(document) == ["name", "ready", "model_version_status"]
    assert (document["name"], document["ready"]) == ("m", True)


async def test_status_is_upstreams(rest: Rest) -> None:
    response = await rest.get("/v1/models/m")
    assert response.json() == {
        "model_version_status": [
            {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    missing = await rest.get("/v1/models/n")
    assert (missing.status_code, error_of(missing)) == (404, "Could not find any versions of model n")
    assert [finished.method for finished in rest.metrics.finished] == ["GetModelStatus"] * 2


async def test_metadata_shows_the_signatures(rest: Rest) -> None:
    metadata = (await rest.get("/v1/models/m/versions/7/metadata")).json()
    assert metadata["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [], "unknown_rank": True},
        "name": "x:0",
    }


async def test_metadata_has_the_precision_where_the_query_asks_for_it(rest: Rest) -> None:
    rest.service.precision = Precision("mixed_bfloat16", 0.02, 0.01)
    path = "/v1/models/m/metadata"
    asked = (await rest.get(f"{path}?metadata_field=strange&metadata_field=tpuserve_precision")).json()["metadata"]
    assert asked["tpuserve_precision"] == {"compute_dtype": "mixed_bfloat16", "atol": 0.02, "rtol": 0.01}
    assert list((await rest.get(path)).json()["metadata"]) == ["signature_def"]


async def test_models_are_listed_with_their_notes(rest: Rest) -> None:
    rest.service.statuses = [VersionStatus(ServableId("m", 7), State.END, "why", notes=("device: cpu",))]
    rest.service.label_versions = {"stable": 7, "canary": 8}
    assert (await rest.get("/v1/models")).json() == {
        "models": [
            {
                "name": "m",
                "labels": {"canary": "8", "stable": "7"},
                "versions": [{"version": "7", "state": "END", "error": "why", "notes": ["device: cpu"]}],
            }
        ]
    }
    rest.service.statuses = []
    rest.service.label_versions = {}
    assert (await rest.get("/v1/models")).json() == {"models": [{"name": "m", "labels": {}, "versions": []}]}


async def test_liveness_and_readiness_differ(rest: Rest) -> None:
    assert (await rest.get("/healthz")).json() == {"status": "alive"}
    root = (await rest.get("/")).json()
    assert (root["status"], root["server"]) == ("alive", "tpuserve")
    for path in root["paths"].values():
        assert (await rest.get(path)).status_code == 200
    ready = await rest.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "reason": ""})
    rest.service.set_ready("draining")
    unready = await rest.get("/readyz")
    assert (unready.status_code, unready.json()) == (503, {"ready": False, "reason": "draining"})
    assert (await rest.get("/healthz")).status_code == 200
    rest.service.not_live = "a run has taken 300 s"
    dead = await rest.get("/healthz")
    assert (dead.status_code, dead.json()) == (503, {"status": "not alive", "reason": "a run has taken 300 s"})


async def test_metrics_are_what_the_renderer_gives(rest: Rest) -> None:
    response = await rest.get("/metrics")
    assert response.content == b"requests 1\n"
    assert response.headers["content-type"] == "text/plain; version=1.0.0"


@pytest.mark.parametrize("path", ["/monitoring/prometheus/metrics", "/metrics"])
async def test_metrics_are_where_the_monitoring_configuration_wants_them_too(path: str) -> None:
    options = RestOptions(metrics_path=path)
    app = rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b"page"], "text/plain"), options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        for where in (path, "/metrics"):
            assert (await client.get(where)).content == b"page"
        assert (await client.post(path)).status_code == 405


async def test_metrics_are_open_metrics_for_clients_that_prefer_it_except_on_upstreams_path() -> None:
    app = rest_app(
        FakeService(),
        FakeMetrics(),
        FakeClock(),
        lambda: ([b"page"], "text/plain"),
        RestOptions(metrics_path="/monitoring/prometheus/metrics"),
        render_open_metrics=lambda: ([b"open"], "application/openmetrics-text"),
    )
    accepts = {"accept": "application/openmetrics-text;version=1.0.0"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        preferred = await client.get("/metrics", headers=accepts)
        assert (preferred.content, preferred.headers["content-type"]) == (b"open", "application/openmetrics-text")
        assert (await client.get("/metrics")).content == b"page"
        assert (await client.get("/monitoring/prometheus/metrics", headers=accepts)).content == b"page"


async def test_failing_page_hides_its_reason() -> None:
    def render() -> tuple[bytes, str]:
        raise ZeroDivisionError("secret")

    rest = Rest(render)
    transport = httpx.ASGITransport(rest.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.get("/metrics")
    assert (response.status_code, error_of(response)) == (500, "Internal error")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
        ("GET", "/v1/models/m"),
        ("GET", "/v1/models/<script>"),
        ("POST", "/v1/models/m:predict"),
        ("GET", "/v2/models/m"),
        ("GET", "/v2/nothing"),
    ],
)
async def test_browsers_and_caches_cannot_misuse_a_response(rest: Rest, method: str, path: str) -> None:
    headers = (await rest.client.request(method, path)).headers
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert headers.get_list("cache-control") == (["no-store"] if method == "GET" else [])
    assert "server" not in headers


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nothing", 404, "Not Found"),
        ("GET", "/v1", 404, "Not Found"),
        ("POST", "/healthz", 405, "Method Not Allowed"),
        ("DELETE", "/readyz", 405, "Method Not Allowed"),
        ("OPTIONS", "/metrics", 405, "Method Not Allowed"),
        ("POST", "/openapi.json", 405, "Method Not Allowed"),
        # FastAPI's pages load scripts from another server.
        ("GET", "/docs", 404, "Not Found"),
        ("GET", "/redoc", 404, "Not Found"),
        ("GET", "/healthz/", 404, "Not Found"),
        ("POST", "/readyz/", 404, "Not Found"),
    ],
)
async def test_errors_outside_v1_have_the_same_form(rest: Rest, method: str, path: str, status: int, text: str) -> None:
    response = await rest.client.request(method, path)
    assert (response.status_code, error_of(response)) == (status, text)


async def test_openapi_document_is_valid_and_whole(rest: Rest) -> None:
    document = (await rest.get("/openapi.json")).json()
    validate(document)
    assert document == rest.app.openapi()
    assert document["paths"].keys() == {
        "/v1/models",
        *(
            f"/v1/models/{{model}}{target}{action}"
            for target in ("", "/versions/{version}", "/labels/{label}")
            for action in ("", "/metadata", ":predict", ":classify", ":regress")
        ),
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        *(
            f"/v2/models/{{model}}{target}{action}"
            for target in ("", "/versions/{version}")
            for action in ("", "/ready", "/infer")
        ),
        "/healthz",
        "/readyz",
        "/metrics",
    }


async def test_every_documented_path_is_served(rest: Rest) -> None:
    strings = {"inputs": TensorSpec("inputs", np.dtype(np.object_), (None,))}
    for name, output, shape in (("classify", "scores", (None, 1)), ("regress", "outputs", (None,))):
        outputs = {output: TensorSpec(output, np.dtype(np.float32), shape)}
        rest.service.signatures[name] = Signature(name, strings, outputs)
    rest.service.run = lambda inputs: (
        {"scores": np.ones((1, 1), "f"), "outputs": np.ones(1, "f")} if "inputs" in inputs else half_plus_two(inputs)
    )
    document = rest.app.openapi()
    for path, operations in document["paths"].items():
        concrete = path.format(model="m", version="7", label="l")
        action = concrete.rpartition(":")[2]
        for method in operations:
            body = ROWS if method == "post" else None
            if action in rest.service.signatures:
                body = json.dumps({"signature_name": action, "examples": [{}]}).encode()
            if concrete.endswith("/infer"):
                tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 3]}
                body = json.dumps({"inputs": [tensor]}).encode()
            response = await rest.client.request(method.upper(), concrete, content=body)
            assert response.status_code == 200, path


async def test_lone_surrogates_are_refused(rest: Rest) -> None:
    body = json.dumps({"inputs": {"x": "\ud800"}, "n": float("nan")}).encode()
    assert "surrogate pair" in error_of(await rest.post(PREDICT, body))
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [float("nan")]}
    response = await rest.post("/v2/models/m/infer", json.dumps({"id": "\ud800", "inputs": [tensor]}).encode())
    assert response.status_code == 400
