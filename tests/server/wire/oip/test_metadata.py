"""Tests for the metadata of the server and of models."""

import ml_dtypes
import numpy as np

from tpuserve_formats.messages.oip import ModelMetadataResponse, ServerMetadataResponse
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.oip.metadata import (
    ModelDescription,
    ServerDescription,
    encode_model,
    encode_server,
    model_to_json,
    server_to_json,
)

SIGNATURE = Signature(
    "s",
    {
        "a": TensorSpec("a", np.dtype(np.float32), (None, 3)),
        "b": TensorSpec("b", np.dtype(ml_dtypes.bfloat16), ()),
        "c": TensorSpec("c", np.dtype(np.object_), None),
    },
    {"d": TensorSpec("d", np.dtype(np.complex64), (2,))},
)
TENSORS = [("a", "FP32", [-1, 3]), ("b", "BF16", []), ("c", "BYTES", [-1]), ("d", "COMPLEX64", [2])]


def test_both_protocols_describe_the_same_model() -> None:
    model = ModelDescription("m", (3, 7), "tensorflow_savedmodel", SIGNATURE)
    message = ModelMetadataResponse.FromString(encode_model(model))
    assert (message.name, list(message.versions), message.platform) == ("m", ["3", "7"], "tensorflow_savedmodel")
    assert [(t.name, t.datatype, list(t.shape)) for t in (*message.inputs, *message.outputs)] == TENSORS
    tensors = [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in TENSORS]
    assert model_to_json(model) == {
        "name": "m",
        "versions": ["3", "7"],
        "platform": "tensorflow_savedmodel",
        "inputs": tensors[:3],
        "outputs": tensors[3:],
    }


def test_both_protocols_describe_the_same_server() -> None:
    server = ServerDescription("n", "1.2", ("a", "b"))
    message = ServerMetadataResponse.FromString(encode_server(server))
    assert (message.name, message.version, list(message.extensions)) == ("n", "1.2", ["a", "b"])
    assert server_to_json(server) == {"name": "n", "version": "1.2", "extensions": ["a", "b"]}
