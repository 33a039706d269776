"""JSON bodies with numbers of six decimals, as most clients send them."""

import json
from typing import Any, Final

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.mlp_model import Floats

_DECIMALS: Final = 6


def rounded(x: Floats) -> Any:  # noqa: ANN401  lists of any depth
    """Return `x` as nested lists of rounded numbers."""
    return np.round(x.astype(np.float64), _DECIMALS).tolist()


def instances_body(x: Floats) -> bytes:
    """Return a predict request of TensorFlow Serving in row form, the form of most REST clients."""
    return json.dumps({"instances": rounded(x)}).encode()


def infer_body(x: Floats) -> bytes:
    """Return a request of the Open Inference Protocol with the values of one tensor in one list."""
    tensor = {"name": mlp_model.INPUT, "datatype": "FP32", "shape": x.shape, "data": rounded(x.ravel())}
    return json.dumps({"inputs": [tensor]}).encode()
