import pytest
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest, ClassificationResponse
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest, MultiInferenceResponse
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tensorflow_serving.apis.regression_pb2 import RegressionRequest, RegressionResponse

from tests.server.observe.request_log.predict_entries import ID, entry, request, response
from tpuserve_server.observe.request_log.entry import LogEntry, LogKind, LogTarget

TARGET = LogTarget("/log/m", "jsonl", 0.25)


def test_an_entry_is_a_prediction_log_with_the_messages_as_they_were() -> None:
    log = PredictionLog.FromString(entry(TARGET, 3).serialize())
    assert log.predict_log.request == request(3)
    assert log.predict_log.response == response(6)


def test_its_metadata_says_what_answered_when_and_how_often_one_is_drawn() -> None:
    metadata = PredictionLog.FromString(entry(TARGET, 3).serialize()).log_metadata
    assert (metadata.model_spec.name, metadata.model_spec.version.value) == ("m", 7)
    assert metadata.model_spec.signature_name == "serving_default"
    assert metadata.sampling_config.sampling_rate == 0.25
    assert metadata.timestamp_secs == 1234
    assert list(metadata.saved_model_tags) == ["serve"]


@pytest.mark.parametrize(
    ("kind", "field", "asked", "answered"),
    [
        (LogKind.CLASSIFY, "classify_log", ClassificationRequest(), ClassificationResponse()),
        (LogKind.REGRESS, "regress_log", RegressionRequest(), RegressionResponse()),
        (LogKind.MULTI_INFERENCE, "multi_inference_log", MultiInferenceRequest(), MultiInferenceResponse()),
    ],
)
def test_every_kind_is_in_its_own_field(
    kind: LogKind,
    field: str,
    asked: ClassificationRequest | RegressionRequest | MultiInferenceRequest,
    answered: ClassificationResponse | RegressionResponse | MultiInferenceResponse,
) -> None:
    spec = asked.tasks.add().model_spec if isinstance(asked, MultiInferenceRequest) else asked.model_spec
    spec.name = "m"
    # The log's thread may serialize a payload.
    made = LogEntry(TARGET, kind, ID, "s", asked.SerializeToString, answered.SerializeToString(), 0, 0)
    log = PredictionLog.FromString(made.serialize())
    assert log.WhichOneof("log_type") == field
    assert getattr(log, field).request == asked
    assert getattr(log, field).response == answered
