"""Request bodies of the load generators for the byte echoes: a model's response, so that echoes are valid responses."""

import json

from benchmarks.harness import mlp_model
from benchmarks.harness.json_bodies import rounded
from benchmarks.harness.targets import MODEL_NAME
from tpuserve_client import tensor
from tpuserve_formats.messages import official


def grpc_answer() -> bytes:
    """Return a serialized PredictResponse of 0.3 KB: one row of 64 floats."""
    answer = official.PredictResponse()
    answer.model_spec.name = MODEL_NAME
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(mlp_model.example()))
    return bytes(answer.SerializeToString())


def golden_answer() -> bytes:
    """Return the expected response in the format of load tests.

    Its bytes differ from the echoed ones, so that a comparison must parse them.
    """
    answer = official.PredictResponse()
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(mlp_model.example()))
    return bytes(answer.SerializeToString())


def rest_answer() -> bytes:
    """Return the same response as a REST body in columns, 0.7 KB."""
    return json.dumps({"outputs": rounded(mlp_model.example())}).encode()
