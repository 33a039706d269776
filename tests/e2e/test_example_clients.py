"""Tests for Classify, Regress and MultiInference with TensorFlow Serving's stubs and curl."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.e2e.running_server import RunningServer, run_server
from tests.e2e.test_official_clients import curl
from tests.support.example_models import CLASSIFY, REGRESS, example, save_example_model
from tests.support.optional import needs
from tests.support.saved_models import write_logs

pytestmark = pytest.mark.xdist_group(__name__)

INPUT = input_pb2.Input(example_list=input_pb2.ExampleList(examples=[example(x=0.25), example(x=1.0, bonus=4.0)]))
CONTEXT = input_pb2.Input(
    example_list_with_context=input_pb2.ExampleListWithContext(
        context=example(bonus=10.0), examples=[example(x=0.25), example(x=1.0)]
    )
)


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("examples")
    path = save_example_model(base / "5")
    request = regression_pb2.RegressionRequest(model_spec={"name": "m"}, input=INPUT)
    write_logs(path, prediction_log_pb2.PredictionLog(regress_log={"request": request}))
    return base


@pytest.fixture(scope="module")
def example_server(base_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--num_request_iterations_for_warmup=2", "--enable_signature_method_name_check")
    with run_server(base_path, log, *flags) as server:
        yield server


@pytest.fixture
def stub(example_server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(example_server.grpc) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def test_classify_regress_and_multi_inference_with_the_official_stub(stub: Any) -> None:  # noqa: ANN401 (a stub)
    spec = {"name": "m", "signature_name": "classify"}
    classified = stub.Classify(classification_pb2.ClassificationRequest(model_spec=spec, input=INPUT), timeout=30)
    assert [[(one.label, one.score) for one in row.classes] for row in classified.result.classifications] == [
        [("low", 0.25), ("high", 0.75)],
        [("low", 1.0), ("high", 0.0)],
    ]
    assert (classified.model_spec.version.value, classified.model_spec.signature_name) == (5, "classify")
    regressed = stub.Regress(regression_pb2.RegressionRequest(model_spec={"name": "m"}, input=CONTEXT), timeout=30)
    assert [one.value for one in regressed.result.regressions] == [12.125, 12.5]
    tasks = [
        inference_pb2.InferenceTask(model_spec={"name": "m"}, method_name=REGRESS),
        inference_pb2.InferenceTask(model_spec=spec, method_name=CLASSIFY),
    ]
    both = stub.MultiInference(inference_pb2.MultiInferenceRequest(tasks=tasks, input=INPUT), timeout=30)
    assert [one.value for one in both.results[0].regression_result.regressions] == [2.125, 6.5]
    assert both.results[1].classification_result == classified.result
    assert [result.model_spec.version.value for result in both.results] == [5, 5]


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        (
            "Regress",
            regression_pb2.RegressionRequest(model_spec={"name": "m"}),
            grpc.StatusCode.INVALID_ARGUMENT,
            "Input is empty.",
        ),
        (
            "Classify",
            classification_pb2.ClassificationRequest(model_spec={"name": "m", "signature_name": "s"}, input=INPUT),
            grpc.StatusCode.INVALID_ARGUMENT,
            "No signature was found with the name: s",
        ),
        (
            "Classify",
            classification_pb2.ClassificationRequest(model_spec={"name": "m"}, input=INPUT),
            grpc.StatusCode.INVALID_ARGUMENT,
            f"Expected classification signature method_name to be {CLASSIFY}. Was: {REGRESS}",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=[inference_pb2.InferenceTask(model_spec={"name": "m"}, method_name="tensorflow/serving/predict")],
                input=INPUT,
            ),
            grpc.StatusCode.UNIMPLEMENTED,
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
    ],
)
def test_refusals_reach_the_official_stub(
    stub: Any,  # noqa: ANN401 (a stub)
    method: str,
    request_: Any,  # noqa: ANN401 (a message)
    code: grpc.StatusCode,
    text: str,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request_, timeout=30)
    assert (caught.value.code(), caught.value.details()) == (code, text)


def test_a_message_of_several_lines_reaches_the_official_stub(stub: Any) -> None:  # noqa: ANN401 (a stub)
    spec = {"name": "m", "signature_name": "odd_regression"}
    with pytest.raises(grpc.RpcError) as caught:
        stub.Regress(regression_pb2.RegressionRequest(model_spec=spec, input=INPUT), timeout=30)
    message = caught.value.details() or ""
    assert message.startswith("No regression outputs found in SignatureDef: inputs {\n")
    assert f'method_name: "{REGRESS}"' in message


@needs("curl")
def test_curl_classify_and_regress(example_server: RunningServer) -> None:
    url = f"{example_server.rest}/v1/models/m"
    examples = '"examples": [{"x": 0.25}, {"x": 1.0}]'
    assert curl("-d", f'{{"signature_name": "classify", {examples}}}', f"{url}:classify") == (
        200,
        {"results": [[["low", 0.25], ["high", 0.75]], [["low", 1.0], ["high", 0.0]]]},
    )
    assert curl("-d", f'{{"context": {{"bonus": 10.0}}, {examples}}}', f"{url}/versions/5:regress") == (
        200,
        {"results": [12.125, 12.5]},
    )
    assert curl("-d", '{"examples": []}', f"{url}:regress")[0] == 400


def test_the_recorded_request_was_replayed(example_server: RunningServer) -> None:
    assert "1 recorded request, 2 runs" in example_server.log.read_text()
