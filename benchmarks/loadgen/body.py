"""Request bodies of the load generators for the byte echoes: a model's response, so that echoes are valid responses.

The variable LOADGEN_VALUES sets the number of values in a response, 64 by default.
"""

import json
import os

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.json_bodies import rounded
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import MODEL_NAME
from tpuserve_client import tensor
from tpuserve_formats.messages import official


def values() -> Floats:
    """Return the output of a response: one row of floats."""
    count = int(os.environ.get("LOADGEN_VALUES", mlp_model.FEATURES))
    return np.resize(mlp_model.example(), (1, count))


def grpc_answer() -> bytes:
    """Return a serialized PredictResponse: 0.3 KB with 64 values."""
    answer = official.PredictResponse()
    answer.model_spec.name = MODEL_NAME
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(values()))
    return bytes(answer.SerializeToString())


def golden_answer() -> bytes:
    """Return the expected response in the format of load tests.

    Its bytes differ from the echoed ones, so that a comparison must parse them.
    """
    answer = official.PredictResponse()
    answer.outputs[mlp_model.OUTPUT].CopyFrom(tensor.to_proto(values()))
    return bytes(answer.SerializeToString())


def rest_answer() -> bytes:
    """Return the same response as a REST body in columns: 0.7 KB with 64 values."""
    return json.dumps({"outputs": rounded(values())}).encode()
