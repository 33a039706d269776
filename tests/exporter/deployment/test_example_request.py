"""Tests that the server's route for Vertex AI reads the examples of requests."""

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tpuserve_exporter.deployment.vertex_deployment import SignatureRows
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json.predict import decode_predict_inputs, parse_predict_body, with_parameters

DTYPES = {"string": np.dtype(np.object_), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def rows(inputs: Mapping[str, Mapping[str, Any]], name: str = "serving_default") -> SignatureRows:
    return SignatureRows.model_validate({"signatures": {name: {"inputs": inputs}}})


def tensor(dtype: str, *shape: int | None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [None, *shape]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "uint8", "bool", "string"])
@pytest.mark.parametrize("shape", [(), (3,), (2, None, 1)])
@pytest.mark.parametrize("names", [("x",), ("x", "y")])
def test_the_server_reads_the_example(dtype: str, shape: tuple[int | None, ...], names: tuple[str, ...]) -> None:
    example = rows({name: tensor(dtype, *shape) for name in names}).example()
    made = DTYPES.get(dtype) or np.dtype(dtype)
    signature = Signature("serving_default", {name: TensorSpec(name, made, (None, *shape)) for name in names}, {})
    decoded = decode_predict_inputs(with_parameters(parse_predict_body(json.dumps(example).encode())), signature)
    assert {name: array.shape for name, array in decoded.inputs.items()} == dict.fromkeys(
        names, (1, *(size or 1 for size in shape))
    )


def test_the_only_signature_is_named_in_the_request() -> None:
    example = rows({"x": tensor("float32")}, "words").example()
    assert example == {"instances": [0.0], "parameters": {"signature_name": "words"}}
    assert with_parameters(parse_predict_body(json.dumps(example).encode())).signature_name == "words"


@pytest.mark.parametrize(
    "unfit",
    [
        {"dtype": "float32", "shape": [2, 3]},
        {"dtype": "float32", "shape": []},
        {"dtype": "float32", "shape": None},
        tensor("complex64"),
        tensor("float32", 1025),
        {**tensor("float32"), "row_splits": ["x/row_splits"]},
    ],
)
def test_inputs_without_a_short_row_have_no_example(unfit: Mapping[str, Any]) -> None:
    assert rows({"x": unfit}).example() is None
    assert rows({"x": unfit, "y": tensor("float32")}).example() is None


def test_a_version_without_signatures_has_no_example() -> None:
    assert SignatureRows(signatures={}).example() is None
