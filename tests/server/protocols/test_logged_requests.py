"""Tests for the request log of each method: REST logs the same as gRPC."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest, ClassificationResponse
from tensorflow_serving.apis.inference_pb2 import InferenceTask, MultiInferenceRequest, MultiInferenceResponse
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tensorflow_serving.apis.regression_pb2 import RegressionRequest, RegressionResponse

from tests.server.observe.request_log.predict_entries import CountingMetrics, read_lines
from tests.support.example_models import CLASSIFY, REGRESS, example, save_example_model
from tests.support.fakes import FakeClock
from tests.support.served_model import ServedModel
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.observe.options import RequestLogOptions, Rotation
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.wire.predict_proto import decode_tensor


class Logged:
    """A served model and its log."""

    def __init__(self, served: ServedModel, writer: LogWriter, folder: Path) -> None:
        self.served = served
        self._writer = writer
        self._folder = folder

    def records(self) -> list[PredictionLog]:
        """Close the log and return all its records."""
        self._writer.stop()
        return read_lines(*self._folder.iterdir())


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_example_model(tmp_path_factory.mktemp("example") / "7")


@pytest.fixture
def logged(model_path: Path, tmp_path: Path) -> Iterator[Logged]:
    writer = LogWriter(Rotation(1 << 20, 4), FakeClock(), CountingMetrics())
    logs = RequestLogs(RequestLogOptions(), writer)
    logs.configure([ModelConfig("m", "/m", logging=LoggingConfig("jsonl", str(tmp_path / "log" / "m"), 1.0))])
    (tmp_path / "log").mkdir()
    writer.start()
    with ServedModel(model_path, logs=logs) as served:
        yield Logged(served, writer, tmp_path / "log")
    writer.stop()


LISTED = {"example_list": {"examples": [example(x=0.25), example(x=1.0)]}}
JSON_EXAMPLES = [{"x": 0.25}, {"x": 1.0}]


def spec(signature_name: str) -> dict[str, str]:
    return {"name": "m", "signature_name": signature_name}


async def test_predict(logged: Logged) -> None:
    serialized = example(x=1.0).SerializeToString()
    asked = PredictRequest(model_spec=spec("flat"), inputs={"inputs": tf.make_tensor_proto([serialized])})
    answer = await logged.served.call("Predict", asked)
    instance = {"b64": base64.b64encode(serialized).decode()}
    assert (await logged.served.post(":predict", {"signature_name": "flat", "instances": [instance]})).is_success
    grpc, rest = logged.records()
    assert grpc.predict_log.request == asked
    assert grpc.predict_log.response == PredictResponse.FromString(answer)
    assert rest.predict_log.response == grpc.predict_log.response
    assert rest.log_metadata.model_spec == grpc.log_metadata.model_spec
    assert decode_tensor("inputs", rest.predict_log.request.inputs["inputs"]).tolist() == [serialized]


async def test_classify(logged: Logged) -> None:
    asked = ClassificationRequest(model_spec=spec("classify"), input=LISTED)
    answer = await logged.served.call("Classify", asked)
    body = {"signature_name": "classify", "examples": JSON_EXAMPLES}
    assert (await logged.served.post(":classify", body)).status_code == 200
    grpc, rest = logged.records()
    assert grpc.classify_log.request == asked
    assert grpc.classify_log.response == ClassificationResponse.FromString(answer)
    assert rest.classify_log.request.input == asked.input
    assert rest.classify_log.response == grpc.classify_log.response


async def test_regress(logged: Logged) -> None:
    asked = RegressionRequest(model_spec=spec("flat"), input=LISTED)
    answer = await logged.served.call("Regress", asked)
    assert (await logged.served.post(":regress", {"signature_name": "flat", "examples": JSON_EXAMPLES})).is_success
    grpc, rest = logged.records()
    assert grpc.regress_log.request == asked
    assert grpc.regress_log.response == RegressionResponse.FromString(answer)
    assert rest.regress_log.request.input == asked.input
    assert rest.regress_log.response == grpc.regress_log.response


async def test_multi_inference(logged: Logged) -> None:
    tasks = [
        InferenceTask(model_spec=spec("classify"), method_name=CLASSIFY),
        InferenceTask(model_spec=spec("serving_default"), method_name=REGRESS),
    ]
    asked = MultiInferenceRequest(tasks=tasks, input=LISTED)
    answer = await logged.served.call("MultiInference", asked)
    (record,) = logged.records()
    assert record.multi_inference_log.request == asked
    assert record.multi_inference_log.response == MultiInferenceResponse.FromString(answer)
    assert (record.log_metadata.model_spec.version.value, record.log_metadata.model_spec.signature_name) == (7, "")


async def test_what_failed_is_not_logged(logged: Logged) -> None:
    with pytest.raises(ServingError):
        await logged.served.call("Predict", PredictRequest(model_spec=spec("raw")))
    assert (await logged.served.post(":regress", {"examples": []})).status_code == 400
    assert logged.records() == []
