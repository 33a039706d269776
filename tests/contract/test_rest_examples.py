"""TensorFlow Serving's contract: REST's classify and regress (json_tensor_test.cc, ClassifyRegressRequestTest)."""

import pytest

from tests.contract.serving_client import ServingClient


def test_classify(serving: ServingClient) -> None:
    reply = serving.post(
        "/v1/models/half:classify", {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}, {"x": 4.0}]}
    )
    assert (reply.status, reply.json) == (200, {"results": [[["", 4.0]], [["", 5.0]]]})


def test_classify_with_labels(serving: ServingClient) -> None:
    reply = serving.post("/v1/models/half:classify", {"signature_name": "classify_both", "examples": [{"x": 2.0}]})
    assert reply.json == {"results": [[["4.0", 4.0]]]}


def test_regress(serving: ServingClient) -> None:
    body = {"signature_name": "regress_x_to_y", "examples": [{"x": [2.0]}, {"x": 4.0}]}
    assert serving.post("/v1/models/half:regress", body).json == {"results": [4.0, 5.0]}


@pytest.mark.parametrize(("target", "value"), [("/versions/123", 3.0), ("/labels/stable", 3.0), ("", 4.0)])
def test_regress_by_version_and_label(serving: ServingClient, target: str, value: float) -> None:
    body = {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}
    assert serving.post(f"/v1/models/half{target}:regress", body).json == {"results": [value]}


def test_context_is_merged_into_every_example(serving: ServingClient) -> None:
    body = {"signature_name": "regress_x_to_y", "context": {"x": 2.0}, "examples": [{"x2": 1.0}, {"x": 6.0}]}
    assert serving.post("/v1/models/half:regress", body).json == {"results": [4.0, 6.0]}


def test_not_finite_features_and_results(serving: ServingClient) -> None:
    body = '{"signature_name": "regress_x_to_y", "examples": [{"x": NaN}, {"x": Infinity}]}'
    reply = serving.http("POST", "/v1/models/half:regress", body)
    assert reply.body.replace(b" ", b"") == b'{"results":[NaN,Infinity]}'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"signature_name": ["hello"], "examples": [{"names": ["foo"]}]}', "'signature_name' key must be a string"),
        ('{"context": [{"names": ["foo", "bar"]}]}', "Example must be JSON object"),
        ('{"examples": {"names": ["foo", "bar"]}}', "list/array"),
        ('{"examples": [[{"names": ["foo", "bar"]}]]}', "Example must be JSON object"),
        ('{"examples": [{"names": [10, null]}]}', "names has element with unexpected JSON type: Null"),
        ('{"examples": [{"names": [10, 10.0]}]}', "feature: names expecting type: int64"),
        ('{"examples": [{"names": [10, {"test": 10}]}]}', "names has element with unexpected JSON type: Object"),
        ('{"examples": [{"names": [[10], 20]}]}', "names has element with unexpected JSON type: Array"),
        ('{"examples": [{"names": [20, 18446744073709551603]}]}', "Only int64_t is supported"),
        ('{"signature_name": "absent", "examples": [{"x": 1.0}]}', "No signature was found with the name: absent"),
        ("", "JSON Parse error: The document is empty"),
    ],
)
@pytest.mark.parametrize("method", ["classify", "regress"])
def test_bad_requests(serving: ServingClient, method: str, body: str, message: str) -> None:
    reply = serving.http("POST", f"/v1/models/half:{method}", body)
    assert reply.status == 400
    assert message in reply.error
