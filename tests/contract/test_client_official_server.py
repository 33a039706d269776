"""Tests for the client against a server that uses the official messages and service stubs."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.support.client_commands import client_commands
from tpuserve_client import AsyncClient, Client, FailedPrecondition, InvalidArgument, State
from tpuserve_client.errors import Code


class Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):  # type: ignore[misc]  # untyped upstream
    """A model `half_plus_two` that fills typed fields, like TensorFlow Serving."""

    def Predict(
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        if request.model_spec.signature_name == "absent":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, 'Serving signature key "absent" not found.')
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = 123
        response.model_spec.signature_name = "serving_default"
        result = tf.make_ndarray(request.inputs["x"]) / 2 + 2
        response.outputs["y"].dtype = tf.float32.as_datatype_enum
        response.outputs["y"].tensor_shape.CopyFrom(tf.TensorShape(result.shape).as_proto())
        response.outputs["y"].float_val.extend(result.reshape(-1).tolist())
        return response

    def Classify(
        self, request: classification_pb2.ClassificationRequest, context: grpc.ServicerContext
    ) -> classification_pb2.ClassificationResponse:
        response = classification_pb2.ClassificationResponse()
        for example in request.input.example_list.examples:
            classes = response.result.classifications.add().classes
            for word in example.features.feature["words"].bytes_list.value:
                classes.add(label=word.decode(), score=len(word))
        return response

    def Regress(
        self, request: regression_pb2.RegressionRequest, context: grpc.ServicerContext
    ) -> regression_pb2.RegressionResponse:
        response = regression_pb2.RegressionResponse()
        listed = request.input.example_list_with_context
        for example in listed.examples:
            [plus] = listed.context.features.feature["plus"].int64_list.value
            [x] = example.features.feature["x"].float_list.value
            response.result.regressions.add(value=x / 2 + plus)
        return response

    def GetModelMetadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, context: grpc.ServicerContext
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for infos, name in (("inputs", "x"), ("outputs", "y")):
            info = getattr(signatures.signature_def["serving_default"], infos)[name]
            info.dtype = tf.float32.as_datatype_enum
            info.tensor_shape.CopyFrom(tf.TensorShape([None, 2]).as_proto())
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = 123
        # Mirrors tensorflow_serving/servables/tensorflow/get_model_metadata_impl.cc.
        for field in request.metadata_field:
            if field != "signature_def":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Metadata field {field} is not supported")
        response.metadata["signature_def"].Pack(signatures)
        return response


class Models(model_service_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]  # untyped upstream
    """A model with an available version and a failed version."""

    def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, context: grpc.ServicerContext
    ) -> get_model_status_pb2.GetModelStatusResponse:
        response = get_model_status_pb2.GetModelStatusResponse()
        states = get_model_status_pb2.ModelVersionStatus
        response.model_version_status.add(version=123, state=states.AVAILABLE)
        failed = response.model_version_status.add(version=9, state=states.END)
        failed.status.error_code = Code.DATA_LOSS
        failed.status.error_message = "cut short"
        return response


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/grpc.sock"
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Predictions(), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(Models(), server)
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port(place)
        server.start()
        try:
            yield place if request.param == "unix" else f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_predictions_are_printed_where_the_server_refuses_to_send_labels(address: str) -> None:
    arguments = ["predict", "half_plus_two", f"--address={address}", "--input=-", "--json"]
    with Client(address) as client, pytest.raises(InvalidArgument, match="tpuserve_labels is not supported"):
        client.metadata("half_plus_two", with_labels=True)
    result = CliRunner().invoke(client_commands, arguments, input="[[1, 2]]")
    assert (result.exit_code, json.loads(result.stdout)["outputs"]) == (0, {"y": [[2.5, 3.0]]})


def test_official_server_answers_the_client(address: str) -> None:
    with Client(address) as client:
        assert client.is_ready()
        prediction = client.predict("half_plus_two", [[1, 2], [3, 4]])
        assert prediction["y"].tolist() == [[2.5, 3.0], [3.5, 4.0]]
        assert prediction["y"].dtype == np.float32
        assert (prediction.model, prediction.version) == ("half_plus_two", 123)
        assert str(client.metadata("half_plus_two").signature().inputs["x"]) == "x: float32[?, 2]"
        assert [(one.version, one.state, one.error) for one in client.status("half_plus_two")] == [
            (123, State.AVAILABLE, ""),
            (9, State.END, "cut short"),
        ]
        with pytest.raises(FailedPrecondition, match='Serving signature key "absent" not found'):
            client.predict("half_plus_two", {"x": np.ones(2, np.float32)}, signature_name="absent")


def test_official_server_classifies_and_regresses_examples(address: str) -> None:
    with Client(address) as client:
        assert client.classify("m", [{"words": ["a", "größe"]}, {}]) == ((("a", 1.0), ("größe", 7.0)), ())
        values = client.regress("m", [{"x": 1.0}, {"x": np.float64(3)}], context={"plus": 2})
        assert (str(values.dtype), values.tolist()) == ("float32", [2.5, 3.5])


async def test_official_server_answers_the_asyncio_client(address: str) -> None:
    async with AsyncClient(address) as client:
        assert await client.is_ready("half_plus_two")
        prediction = await client.predict("half_plus_two", {"x": np.array([1, 2], np.float32)})
        assert prediction["y"].tolist() == [2.5, 3.0]
