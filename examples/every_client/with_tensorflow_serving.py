"""Ask as for TensorFlow Serving: its own stubs, curl, and the Predict that perf_analyzer sends it.

.venv/bin/python -m examples.every_client.with_tensorflow_serving GRPC_ADDRESS REST_ADDRESS
"""

import json
import os
import subprocess

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at import.

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from examples.every_client.question import INPUT, MEASURES, MODEL, PROBABILITIES, SPECIES, Outputs, Server, ask_all

TIMEOUT_S = 60


def through_stubs(server: Server) -> Outputs:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    request.inputs[INPUT].CopyFrom(tf.make_tensor_proto(MEASURES))
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return _outputs(stub.Predict(request, timeout=TIMEOUT_S))


def through_curl(server: Server) -> Outputs:
    url = f"http://{server.rest}/v1/models/{MODEL}:predict"
    command = ["curl", "-sS", "-m", str(TIMEOUT_S), "-d", json.dumps({"instances": MEASURES.tolist()}), url]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    rows = answer["predictions"]
    return {name: np.array([row[name] for row in rows]) for name in (PROBABILITIES, SPECIES)}


def as_perf_analyzer(server: Server) -> Outputs:
    """Send what `perf_analyzer --service-kind tfserving -i grpc` sends: the signature first, then typed values."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        asked.model_spec.name = MODEL
        signatures = get_model_metadata_pb2.SignatureDefMap()
        stub.GetModelMetadata(asked, timeout=TIMEOUT_S).metadata["signature_def"].Unpack(signatures)
        tensor = signatures.signature_def["serving_default"].inputs[INPUT]
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = MODEL, "serving_default"
        request.inputs[INPUT].dtype = tensor.dtype
        for size in MEASURES.shape:
            request.inputs[INPUT].tensor_shape.dim.add(size=size)
        request.inputs[INPUT].float_val.extend(MEASURES.ravel().tolist())
        return _outputs(stub.Predict(request, timeout=TIMEOUT_S))


def _outputs(response: predict_pb2.PredictResponse) -> Outputs:
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


if __name__ == "__main__":
    ask_all(
        {
            "TensorFlow Serving's stubs": through_stubs,
            "TensorFlow Serving's REST, curl": through_curl,
            "perf_analyzer, tfserving (replayed)": as_perf_analyzer,
        }
    )
