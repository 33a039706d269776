"""What the load generators send to the byte echoes: a model's answer, so that what comes back can be read as one."""

import json

from benchmarks.harness import mlp_model
from benchmarks.harness.targets import MODEL_NAME
from tpuserve_client import tensor
from tpuserve_formats.messages import official


def grpc_answer() -> bytes:
    """A serialized PredictResponse of 0.3 KB: one row of 64 floats."""
    answer = official.PredictResponse()
    answer.model_spec.name = MODEL_NAME
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(mlp_model.example()))
    return bytes(answer.SerializeToString())


def golden_answer() -> bytes:
    """What answers are compared with, as load tests keep it; not the very bytes, so that it takes reading."""
    answer = official.PredictResponse()
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(mlp_model.example()))
    return bytes(answer.SerializeToString())


def rest_answer() -> bytes:
    """The same as a REST server answers in columns; 0.7 KB."""
    rows = [[round(float(value), 6) for value in row] for row in mlp_model.example()]
    return json.dumps({"outputs": rows}).encode()
