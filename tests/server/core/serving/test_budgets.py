"""Tests for the size of a response: no encoder writes more than the budget expects."""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_formats.dtypes import BY_DTYPE, STRING
from tpuserve_server.core.serving.budgets import JSON, JSON_ROWS, RAW, TYPED, Encoding, ResponseBudget
from tpuserve_server.core.terms.errors import ResourceExhausted, ServingError
from tpuserve_server.core.terms.types import Array, PredictResult, ServableId, Tensors
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.oip.infer_json_response import encode_infer_json
from tpuserve_server.wire.oip.infer_proto import encode_infer_response
from tpuserve_server.wire.oip.inference import InferenceResult
from tpuserve_server.wire.predict_proto import encode_predict_response

ID = ServableId("m", 1)
# Names, shapes, dtypes and the model's spec.
FRAME_BYTES = 400


def predict(outputs: Tensors, *, as_content: bool) -> bytes:
    return encode_predict_response(PredictResult(ID, "s", outputs), as_content=as_content)


def infer(outputs: Tensors, *, is_binary: bool) -> InferenceResult:
    return InferenceResult("", ID, outputs, {}, is_binary)


ENCODERS: dict[str, tuple[Encoding, Callable[[Tensors], bytes]]] = {
    "TF gRPC": (TYPED, lambda outputs: predict(outputs, as_content=False)),
    "TF gRPC, content": (RAW, lambda outputs: predict(outputs, as_content=True)),
    "OIP gRPC": (RAW, lambda outputs: encode_infer_response(infer(outputs, is_binary=True))),
    "OIP REST": (JSON, lambda outputs: encode_infer_json(infer(outputs, is_binary=False)).body),
    "OIP REST, binary": (RAW, lambda outputs: encode_infer_json(infer(outputs, is_binary=True)).body),
    "TF REST, rows": (JSON_ROWS, lambda outputs: encode_predictions(outputs, is_row=True)),
    "TF REST, columns": (JSON_ROWS, lambda outputs: encode_predictions(outputs, is_row=False)),
}


def encoded_bytes(name: str, outputs: Tensors) -> int:
    """Return the size of a response, or 0 if it has no such form."""
    try:
        return len(ENCODERS[name][1](outputs))
    except ServingError:
        return 0


NUMBERS = [dtype for dtype in BY_DTYPE if dtype != STRING and dtype.kind not in "bc"]


@st.composite
def some_array(draw: st.DrawFn, rows: int) -> Array:
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
    if draw(st.booleans()):
        strings = np.empty(shape, np.object_)
        for index in np.ndindex(shape):
            strings[index] = draw(st.binary(max_size=8))
        return strings
    dtype = draw(st.sampled_from(NUMBERS))
    size_bytes = math.prod(shape) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size_bytes, max_size=size_bytes)), dtype).reshape(shape)


@st.composite
def some_outputs(draw: st.DrawFn) -> Tensors:
    rows = draw(st.integers(0, 4))
    names = draw(st.lists(st.sampled_from(["y", "a_bytes", "é"]), min_size=1, max_size=3, unique=True))
    return {name: draw(some_array(rows)) for name in names}


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=60)
@given(outputs=some_outputs())
def test_no_response_is_larger_than_its_bound(name: str, outputs: Tensors) -> None:
    encoding, _ = ENCODERS[name]
    size_bytes = encoded_bytes(name, outputs)
    if size_bytes <= FRAME_BYTES * len(outputs):
        return
    budget = ResponseBudget(size_bytes - FRAME_BYTES * len(outputs))
    with pytest.raises(ResourceExhausted):
        budget.check("m", (outputs, encoding))


EXTREMES: dict[str, Array] = {
    "negative int8": np.full((50, 20), -128, np.int8),
    "negative int32": np.full((50, 20), -(2**31), np.int32),
    "long floats": np.full((50, 20), -1.2345678e-38, np.float32),
    "long doubles": np.full((50, 20), -1.2345678901234567e-300, np.float64),
    "control characters": np.full((1, 20), b"\x01" * 50, np.object_),
    "bytes": np.full((1000, 1), b"\xff", np.object_),
    "empty rows": np.zeros((1000, 0), np.float32),
    "halves": np.full((50, 20), -6.1e-5, np.float16),
    "large uint64": np.full((50, 20), 2**64 - 1, np.uint64),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("kind", EXTREMES)
def test_the_bound_covers_the_longest_values(name: str, kind: str) -> None:
    encoding, _ = ENCODERS[name]
    outputs = {"y": EXTREMES[kind]}
    size_bytes = encoded_bytes(name, outputs)
    if size_bytes > FRAME_BYTES:
        assert not ResponseBudget(size_bytes - FRAME_BYTES).is_small((outputs, encoding))


async def test_a_response_over_the_budget_is_refused_before_it_is_encoded() -> None:
    budget = ResponseBudget(10_000)
    outputs = {"small": np.zeros(10, np.float32), "y": np.zeros((100, 30), np.float32)}
    with pytest.raises(ResourceExhausted) as raised:
        await budget.encode(lambda: pytest.fail("encoded"), "digits", (outputs, RAW))
    assert raised.value.message == (
        "The response of model digits would take up to 12040 bytes, more than the 10000 bytes of max_response_bytes. "
        'Its tensor "y" (float32, shape [100, 30]) takes up to 12000 bytes. Request fewer rows or outputs'
    )
    assert budget.refusals == 1
    assert await budget.encode(lambda: b"encoded", "digits", ({"y": outputs["y"][:80]}, RAW)) == b"encoded"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros(1000, np.float32), True),
        (np.zeros(100_000, np.float32), False),
        (np.array([b"a"] * 100, np.object_), True),
        (np.array([b"a"] * 10_000, np.object_), False),
        (np.array([b"a" * 300_000], np.object_), False),
    ],
)
async def test_large_responses_are_encoded_on_another_thread(array: Any, expected: bool) -> None:  # noqa: ANN401
    budget, outputs = ResponseBudget(1 << 30), {"x": np.zeros(1), "y": array}
    thread = await budget.encode(threading.get_ident, "m", (outputs, RAW))
    assert (thread == threading.get_ident()) is expected
    assert budget.is_small((outputs, RAW)) is expected
