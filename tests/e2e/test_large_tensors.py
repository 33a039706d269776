"""Tests that tensors of every size get right answers over every protocol, also from a cache and with a request log.

The host aligns the contents of a large tensor in a bytearray. The size of a message decides how the server reads it.
"""

import urllib.request
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.saved_models import save_function
from tpuserve_client import Client
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.messages.oip import ModelInferRequest, ModelStreamInferResponse
from tpuserve_formats.tensor_proto import encode_tensor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

COLUMNS = 1024
# 4 KB, 256 KB, which layouts still read, and 2 MB.
ROWS = (1, 64, 512)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serve a model twice: `plain`, and `kept`, whose responses are cached and whose requests are logged."""
    folder = tmp_path_factory.mktemp("large")
    save_function(folder / "model/1", lambda x: {"y": 2 * x}, tf.TensorSpec([None, COLUMNS], tf.float32, "x"))
    config = folder / "models.config"
    config.write_text(f"""
        model_config_list {{
          config {{ name: "plain" base_path: "{folder}/model" model_platform: "tensorflow" }}
          config {{
            name: "kept" base_path: "{folder}/model" model_platform: "tensorflow"
            response_cache {{ max_bytes: 100000000 }}
            logging_config {{
              log_collector_config {{ type: "tfrecord" filename_prefix: "{folder}/logged" }}
              sampling_config {{ sampling_rate: 1.0 }}
            }}
          }}
        }}""")
    with run_configured_server(folder / "log", f"--model_config_file={config}", model="plain") as server:
        yield server


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", ["plain", "kept"])
@pytest.mark.parametrize("protocol", ["grpc", "oip+grpc", "http", "oip+http"])
def test_answers_do_not_depend_on_the_size(server: RunningServer, protocol: str, model: str, rows: int) -> None:
    address = server.grpc if "grpc" in protocol else server.rest.removeprefix("http://")
    with Client(f"{protocol}://{address}") as client:
        client.wait_until_ready(60, model)
        for seed in (1, 1, 2, 2, 3):
            x = np.random.default_rng(seed).integers(0, 100, (rows, COLUMNS)).astype(np.float32)
            np.testing.assert_array_equal(client.predict(model, {"x": x})["y"], 2 * x)


def test_answers_of_a_stream_do_not_depend_on_the_size(server: RunningServer) -> None:
    sent = [np.full((rows, COLUMNS), rows, np.float32) for rows in (*ROWS, *ROWS)]
    with grpc.insecure_channel(server.grpc) as channel:
        infer = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelStreamInferResponse.FromString,
        )
        answers = list(infer(iter(map(request, sent)), timeout=60))
    for x, answer in zip(sent, answers, strict=True):
        assert answer.error_message == ""
        (contents,) = answer.infer_response.raw_output_contents
        np.testing.assert_array_equal(np.frombuffer(contents, np.float32).reshape(x.shape), 2 * x)


@pytest.mark.parametrize(
    "path", ["tensorflow.serving.PredictionService/Predict", "inference.GRPCInferenceService/ModelInfer"]
)
def test_malformed_large_messages_are_refused(server: RunningServer, path: str) -> None:
    x = np.zeros((512, COLUMNS), np.float32)
    predict = PredictRequest()
    predict.inputs["x"].MergeFromString(encode_tensor(x))
    message = predict if path.endswith("Predict") else request(x)
    # The last field has a length, and no content.
    sent = message.SerializeToString() + b"\x0a\x7f"
    with grpc.insecure_channel(server.grpc) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{path}")
        with pytest.raises(grpc.RpcError) as refused:
            call(sent, timeout=60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith("Malformed")


def test_a_large_body_of_raw_data_alone_is_answered(server: RunningServer) -> None:
    x = np.full((64, COLUMNS), 3, np.float32)
    sent = urllib.request.Request(
        f"{server.rest}/v2/models/plain/infer", x.tobytes(), {"Inference-Header-Content-Length": "0"}
    )
    with urllib.request.urlopen(sent, timeout=60) as answer:
        contents = answer.read()[int(answer.headers["Inference-Header-Content-Length"]) :]
    np.testing.assert_array_equal(np.frombuffer(contents, np.float32).reshape(x.shape), 2 * x)


def request(x: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> ModelInferRequest:
    made = ModelInferRequest(model_name="plain", raw_input_contents=[x.tobytes()])
    made.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return made
