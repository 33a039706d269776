"""The clients of the contract tests: TensorFlow Serving's own stubs, and plain HTTP."""

import contextlib
import gzip
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

TIMEOUT_S = 60


@dataclass
class Reply:
    """An HTTP response. `json` decodes the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401  # a JSON document
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of `{"error": …}`, the only member of an error's body."""
        document = self.json
        assert list(document) == ["error"], document
        return str(document["error"])


@dataclass
class ServingClient:
    """A client of one server's gRPC and REST ports."""

    grpc_address: str
    rest_url: str
    _exit: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> "ServingClient":
        channel = self._exit.enter_context(grpc.insecure_channel(self.grpc_address))
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.model = model_service_pb2_grpc.ModelServiceStub(channel)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        return self.prediction.Predict(request, timeout=TIMEOUT_S)

    def classify(self, request: classification_pb2.ClassificationRequest) -> classification_pb2.ClassificationResponse:
        return self.prediction.Classify(request, timeout=TIMEOUT_S)

    def regress(self, request: regression_pb2.RegressionRequest) -> regression_pb2.RegressionResponse:
        return self.prediction.Regress(request, timeout=TIMEOUT_S)

    def multi_inference(self, request: inference_pb2.MultiInferenceRequest) -> inference_pb2.MultiInferenceResponse:
        return self.prediction.MultiInference(request, timeout=TIMEOUT_S)

    def metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        return self.prediction.GetModelMetadata(request, timeout=TIMEOUT_S)

    def status(
        self, request: get_model_status_pb2.GetModelStatusRequest
    ) -> get_model_status_pb2.GetModelStatusResponse:
        return self.model.GetModelStatus(request, timeout=TIMEOUT_S)

    def reload(self, request: model_management_pb2.ReloadConfigRequest) -> model_management_pb2.ReloadConfigResponse:
        return self.model.HandleReloadConfigRequest(request, timeout=TIMEOUT_S)

    def http(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> Reply:
        """Send one request on a new connection.

        The path is sent unchanged. `content_type=…` becomes `content-type`.
        """
        url = urlsplit(self.rest_url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_S)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body.encode() if isinstance(body, str) else body, named)
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, document: object, **headers: str) -> Reply:
        """POST a JSON document."""
        return self.http("POST", path, json.dumps(document), **headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.http("GET", path, **headers)


def zipped(document: object) -> bytes:
    """Return a JSON document, compressed with gzip."""
    return gzip.compress(json.dumps(document).encode())


def predict_request(model: str = "half", signature: str = "", **inputs: object) -> predict_pb2.PredictRequest:
    """Return a PredictRequest. Inputs are TensorProtos or values for tf.make_tensor_proto."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        proto = value if isinstance(value, tf.make_tensor_proto(0).__class__) else tf.make_tensor_proto(value)
        request.inputs[name].CopyFrom(proto)
    return request


def example(**features: float) -> tf.train.Example:
    """Return an Example of float features."""
    floats = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[value])) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=floats))


@contextlib.contextmanager
def refused(code: grpc.StatusCode, message: str) -> Iterator[None]:
    """Check that the call inside fails with `code` and a message that contains `message`."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value.details()
    assert message in (caught.value.details() or "")
