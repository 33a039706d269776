"""TensorFlow Serving's Classify and Regress as protobuf messages."""

import numpy as np

from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.examples import Features
from tpuserve_client.exchange import ExampleCall
from tpuserve_client.model import Classifications, ScoredClass
from tpuserve_formats.messages import official

CLASSIFY = "/tensorflow.serving.PredictionService/Classify"
REGRESS = "/tensorflow.serving.PredictionService/Regress"


def encode_request(call: ExampleCall, spec: official.ModelSpec) -> bytes:
    """Serialize a ClassificationRequest. A RegressionRequest has the same fields."""
    request = official.ClassificationRequest(model_spec=spec)
    request.model_spec.signature_name = call.signature_name or ""
    examples = request.input.example_list
    if call.context is not None:
        examples = request.input.example_list_with_context
        examples.context.SetInParent()
        _fill(examples.context, call.context)
    for features in call.examples:
        _fill(examples.examples.add(), features)
    return bytes(request.SerializeToString())


def classifications(response: official.ClassificationResponse) -> Classifications:
    """Return the classes of each example."""
    return tuple(
        tuple(ScoredClass(each.label, each.score) for each in row.classes) for row in response.result.classifications
    )


def regressions(response: official.RegressionResponse) -> Array:
    """Return a float32 array with a value for each example."""
    return np.array([row.value for row in response.result.regressions], np.float32)


def _fill(example: official.Example, features: Features) -> None:
    for name, values in features.items():
        feature = example.features.feature[name]
        kind = "bytes_list" if values.dtype == STRING else "float_list" if values.dtype.kind == "f" else "int64_list"
        # A feature without values stays without a kind, as in JSON.
        if values.size:
            getattr(feature, kind).value.extend(values.tolist())
