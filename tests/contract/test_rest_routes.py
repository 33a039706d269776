"""TensorFlow Serving's contract: REST's routes, status codes and headers (http_rest_api_handler_test.cc)."""

import json

import pytest

from tests.contract.serving_client import ServingClient, zipped

ROWS = {"instances": [[2.0]]}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/foo"),
        ("POST", "/v1/foo"),
        ("GET", "/v1/models/debug/model_name"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/half:predict"),
        ("GET", "/v1/models/half/version/50:predict"),
        ("POST", "/v1/models/half/version/50:regress"),
        ("POST", "/v1/models/half/versions/HELLO:regress"),
        ("POST", "/v1/models/half/metadata"),
        ("POST", "/v1/models/half/label/some_label:regress"),
        ("POST", "/v1/models/half/versions/50/labels/some_label:regress"),
        ("POST", "/v1/models/half:explain"),
        ("PUT", "/v1/models/half:predict"),
    ],
)
def test_malformed_requests(serving: ServingClient, method: str, path: str) -> None:
    reply = serving.http(method, path)
    assert (reply.status, reply.error) == (400, f"Malformed request: {method} {path}")


def test_a_version_beyond_int64(serving: ServingClient) -> None:
    reply = serving.http("POST", "/v1/models/half/versions/18446744073709551615:regress")
    assert reply.status == 400
    assert "Failed to convert version" in reply.error


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/v1/models/half:predict", 4.0),
        ("/v1/models/half/versions/123:predict", 3.0),
        ("/v1/models/half/versions/00000123:predict", 3.0),
        ("/v1/models/half/labels/stable:predict", 3.0),
        ("/v1/models/half/labels/canary:predict", 4.0),
        ("/V1/Models/half:PREDICT", 4.0),
        ("/v1/models/%68alf:predict", 4.0),
    ],
)
def test_predict_routes(serving: ServingClient, path: str, value: float) -> None:
    reply = serving.post(path, ROWS)
    assert (reply.status, reply.json) == (200, {"predictions": [[value]]})
    assert reply.headers["content-type"] == "application/json"


def test_an_unknown_model_version_and_label(serving: ServingClient) -> None:
    model = serving.post("/v1/models/nobody:predict", ROWS)
    assert (model.status, model.error) == (404, "Servable not found for request: Latest(nobody)")
    version = serving.post("/v1/models/half/versions/9:predict", ROWS)
    assert (version.status, version.error) == (404, "Servable not found for request: Specific(half, 9)")
    label = serving.post("/v1/models/half/labels/nightly:predict", ROWS)
    assert (label.status, label.error) == (400, "Unrecognized servable version label: nightly")


def test_status(serving: ServingClient) -> None:
    ok = {"error_code": "OK", "error_message": ""}
    newest_first = [{"version": v, "state": "AVAILABLE", "status": ok} for v in ("124", "123")]
    assert serving.get("/v1/models/half").json == {"model_version_status": newest_first}
    assert serving.get("/v1/models/half/versions/123").json == {"model_version_status": newest_first[1:]}
    assert serving.get("/v1/models/half/labels/stable").status == 200


def test_status_of_what_is_not_there(serving: ServingClient) -> None:
    model = serving.get("/v1/models/nobody")
    assert (model.status, model.error) == (404, "Could not find any versions of model nobody")
    version = serving.get("/v1/models/half/versions/9")
    assert (version.status, version.error) == (404, "Could not find version 9 of model half")


@pytest.mark.parametrize(("path", "version"), [("", "124"), ("/versions/123", "123"), ("/labels/stable", "123")])
def test_metadata(serving: ServingClient, path: str, version: str) -> None:
    document = serving.get(f"/v1/models/half{path}/metadata").json
    assert document["model_spec"] == {"name": "half", "signature_name": "", "version": version}
    signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature == {
        "inputs": {
            "x": {
                "dtype": "DT_FLOAT",
                "name": "x:0",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}], "unknown_rank": False},
            }
        },
        "outputs": {
            "y": {
                "dtype": "DT_FLOAT",
                "name": "y:0",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}], "unknown_rank": False},
            }
        },
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


def test_the_models_are_listed_where_upstream_has_an_error(serving: ServingClient) -> None:
    reply = serving.get("/v1/models")
    assert reply.status == 200
    assert {model["name"] for model in reply.json["models"]} == {"half", "kinds"}


def test_the_version_that_answered_is_a_header(serving: ServingClient) -> None:
    reply = serving.post("/v1/models/half/labels/stable:predict", ROWS)
    assert reply.headers["x-tpuserve-model-version"] == "123"


def test_a_gzipped_request(serving: ServingClient) -> None:
    reply = serving.http("POST", "/v1/models/half:predict", zipped(ROWS), content_encoding="gzip")
    assert (reply.status, reply.json) == (200, {"predictions": [[4.0]]})


def test_a_gzipped_response_where_it_is_asked_for(serving: ServingClient) -> None:
    import gzip
    import json

    reply = serving.post(
        "/v1/models/kinds:predict",
        {"signature_name": "echo_float32", "instances": [0.5] * 20_000},
        accept_encoding="gzip",
    )
    assert reply.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(reply.body)) == {"predictions": [0.5] * 20_000}


def test_a_gzip_bomb_is_refused(serving: ServingClient) -> None:
    import gzip

    body = gzip.compress(b" " * 100_000_000)
    assert serving.http("POST", "/v1/models/half:predict", body, content_encoding="gzip").status == 413


def test_gzip_that_is_none(serving: ServingClient) -> None:
    reply = serving.http("POST", "/v1/models/half:predict", b"\x1f\x8bno", content_encoding="gzip")
    assert reply.status == 400


def test_an_encoding_that_is_not_known(serving: ServingClient) -> None:
    reply = serving.http("POST", "/v1/models/half:predict", b"{}", content_encoding="br")
    assert reply.status == 415


def test_a_body_over_the_limit(serving: ServingClient) -> None:
    assert serving.http("POST", "/v1/models/half:predict", b" " * 8_000_001).status == 413


def test_cors_headers(serving: ServingClient) -> None:
    reply = serving.post("/v1/models/half:predict", ROWS, origin="http://example.com")
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-methods"] == "POST, GET"
    # TensorFlow Serving's header, then ours.
    assert reply.headers["access-control-allow-headers"].startswith("Content-Type, Content-Encoding, x-tpuserve-")


def test_cors_preflight(serving: ServingClient) -> None:
    path = "/v1/models/half:predict"
    assert serving.http("OPTIONS", path, origin="https://example.com").status == 200
    assert serving.http("OPTIONS", path).status == 400


def test_metrics_at_the_configured_path(serving: ServingClient) -> None:
    serving.post("/v1/models/half:predict", ROWS)
    reply = serving.get("/monitoring/prometheus/metrics")
    assert reply.status == 200
    assert b':tensorflow:serving:request_count{model_name="half",status="OK"}' in reply.body


@pytest.mark.parametrize("name", ["..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "%00", "m" * 10_000, "%ff"])
def test_strange_model_names(serving: ServingClient, name: str) -> None:
    assert serving.post(f"/v1/models/{name}:predict", ROWS).status in {400, 404, 414, 431}
    assert serving.post("/v1/models/half:predict", ROWS).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/healthz", "/readyz", "/metrics", "/monitoring/prometheus/metrics", "/openapi.json", "/console",
        "/debug/status", "/v1/models", "/v1/models/half", "/v1/models/half/metadata", "/v1/models/nobody", "/v2",
        "/v2/health/live", "/v2/models/half", "/v2/models/half/infer", "/nowhere",
    ],
)  # fmt: skip
def test_head_answers_as_get_without_the_body(serving: ServingClient, path: str) -> None:
    get, head = serving.get(path), serving.http("HEAD", path)
    assert (head.status, head.body) == (get.status, b"")
    # A stream has no length. The host writes 0 for its HEAD.
    assert head.headers.keys() - {"content-length"} == get.headers.keys() - {"content-length", "transfer-encoding"}
    assert head.headers["content-type"] == get.headers["content-type"]
    # Some pages show the time.
    if "content-length" in get.headers:
        assert abs(int(head.headers["content-length"]) - len(get.body)) < 1000


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/models/half:predict", ROWS),
        ("/v1/models/half:classify", {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]}),
        ("/v1/models/half:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}),
        (
            "/v2/models/half/infer",
            {"id": "1", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}]},
        ),
        ("/v2/repository/index", {"ready": True}),
    ],
)
def test_a_byte_order_mark_before_json_is_skipped(serving: ServingClient, path: str, document: object) -> None:
    body = json.dumps(document)
    # The second time, the server may know the layout of the body.
    for text in (body, f"\ufeff{body}", f"\ufeff{body}"):
        reply = serving.http("POST", path, text)
        assert (reply.status, "error" in reply.json) == (200, False)
