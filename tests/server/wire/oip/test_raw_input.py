"""Tests for REST requests without JSON, whose body is the model's only input."""

import numpy as np
import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.inference import InferenceRequest

FLOAT, STRING = np.dtype(np.float32), np.dtype(np.object_)


def decode(shape: tuple[int | None, ...] | None, body: bytes, dtype: np.dtype = FLOAT) -> Array:
    signature = Signature("s", {"x": TensorSpec("x", dtype, shape)}, {})
    return decode_inputs("m", signature, InferenceRequest(raw_input=body))["x"]


@pytest.mark.parametrize(
    ("shape", "deduced"),
    [
        ((None, 3), (2, 3)),
        ((2, None), (2, 3)),
        ((None, None, 3), (1, 2, 3)),
        ((6,), (6,)),
        ((None,), (6,)),
        (None, (6,)),
    ],
)
def test_one_unknown_dimension_follows_from_the_size(shape: tuple[int | None, ...] | None, deduced: object) -> None:
    array = decode(shape, np.arange(6, dtype=np.float32).tobytes())
    assert (array.shape, array.reshape(-1).tolist()) == (deduced, [0, 1, 2, 3, 4, 5])


def test_a_string_is_the_whole_body() -> None:
    assert decode((None, 1), b"ab\0", STRING).tolist() == [[b"ab\0"]]


@pytest.mark.parametrize(
    ("shape", "body", "dtype", "message"),
    [
        ((None, 3), b"1234567", FLOAT, "input byte size mismatch for input 'x' for model 'm'. Expected 0, got 7"),
        ((None, 0), b"1234", FLOAT, "Expected 0, got 4"),
        ((2, None, None), b"", FLOAT, "can not be deduced because there are more than one variable-sized dimension"),
        ((None, 2), b"", STRING, "For BYTE datatype raw input 'x', the model must have input shape [1]"),
    ],
)
def test_other_sizes_are_refused(shape: tuple[int | None, ...], body: bytes, dtype: np.dtype, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(shape, body, dtype)
    assert message in caught.value.message


def test_a_model_with_several_inputs_is_refused() -> None:
    spec = TensorSpec("x", FLOAT, (None,))
    with pytest.raises(InvalidArgument, match=r"Raw request must only have 1 input .* but got 2 inputs in 'm' model"):
        decode_inputs("m", Signature("s", {"x": spec, "y": spec}, {}), InferenceRequest(raw_input=b""))
