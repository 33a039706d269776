"""Entries of the request log, and their outcomes."""

from collections import Counter
from pathlib import Path

import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.request_log.writer import LogEntry, LogKind, LogTarget

ID = ServableId("m", 7)


def request(value: float) -> PredictRequest:
    message = PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto([value]))
    return message


def response(value: float) -> PredictResponse:
    message = PredictResponse()
    message.outputs["y"].CopyFrom(tf.make_tensor_proto([value]))
    return message


def entry(target: LogTarget, value: float, size_bytes: int = 100) -> LogEntry:
    payloads = request(value).SerializeToString(), response(2 * value).SerializeToString()
    return LogEntry(target, LogKind.PREDICT, ID, "serving_default", *payloads, 1234.5, size_bytes)


def read_lines(*paths: Path) -> list[PredictionLog]:
    """Return the records of JSON lines files, in order."""
    return [
        json_format.Parse(line, PredictionLog()) for path in sorted(paths) for line in path.read_bytes().splitlines()
    ]


def read_tfrecords(*paths: Path) -> list[PredictionLog]:
    """Return the records of TFRecord files, in order, after a check of their checksums."""
    return [
        PredictionLog.FromString(record)
        for path in sorted(paths)
        for record in tf.compat.v1.io.tf_record_iterator(str(path))
    ]


def inputs_of(logs: list[PredictionLog]) -> list[float]:
    return [float(tf.make_ndarray(log.predict_log.request.inputs["x"])[0]) for log in logs]


class CountingMetrics:
    """Counts outcomes."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def request_logged(self, *, model: str, outcome: str) -> None:
        assert model == "m"
        self.outcomes[outcome] += 1
