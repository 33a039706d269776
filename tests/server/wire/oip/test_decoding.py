"""Tests for decoding inputs by a signature, with Triton's errors in Triton's order."""

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tpuserve_formats.messages.oip import InferTensorContents
from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError, Unimplemented
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor, RequestedOutput

FLOAT, STRING = np.dtype(np.float32), np.dtype(np.object_)
SIGNATURE = Signature(
    "s",
    {"a": TensorSpec("a", FLOAT, (None, 2)), "b": TensorSpec("b", STRING, (None,))},
    {"y": TensorSpec("y", FLOAT, None)},
)
PAIR = np.array([1, 2], np.float32).tobytes()
WORD = struct.pack("<I", 2) + b"hi"
A = InputTensor("a", "FP32", (1, 2), PAIR)
B = InputTensor("b", "BYTES", (1,), WORD)
UNKNOWN = "[request id: <id_unknown>] "


def decode(*inputs: InputTensor, signature: Signature = SIGNATURE, **more: Any) -> dict[str, Array]:  # noqa: ANN401 (fields of the request)
    return decode_inputs("m", signature, InferenceRequest(inputs=inputs, **more))


def refusal(*inputs: InputTensor, kind: type[ServingError] = InvalidArgument, **more: Any) -> str:  # noqa: ANN401 (as above)
    with pytest.raises(kind) as caught:
        decode(*inputs, **more)
    return caught.value.message


def test_raw_numbers_are_views_and_strings_are_bytes() -> None:
    arrays = decode(B, A)
    assert arrays["a"].tolist() == [[1.0, 2.0]]
    assert not arrays["a"].flags.owndata
    assert arrays["b"].tolist() == [b"hi"]


def test_zero_rows_and_scalars_are_decoded() -> None:
    assert decode(A._replace(shape=(0, 2), data=b""), B)["a"].shape == (0, 2)
    scalar = Signature("s", {"a": TensorSpec("a", FLOAT, ())}, {})
    assert decode(InputTensor("a", "FP32", (), [3]), signature=scalar)["a"].tolist() == 3.0


def test_inputs_with_defaults_may_be_missing() -> None:
    optional = Signature("s", SIGNATURE.inputs, {}, defaults={"b": np.array([b""], np.object_)})
    assert decode(A, signature=optional).keys() == {"a"}
    assert refusal(signature=optional) == (
        f"{UNKNOWN}expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but "
        "missing required input(s) ['a']. Please provide all required input(s)."
    )


def test_an_input_of_unknown_rank_takes_any_shape() -> None:
    free = Signature("s", {"a": TensorSpec("a", FLOAT, None)}, {})
    assert decode(A._replace(shape=(2, 1, 1)), signature=free)["a"].shape == (2, 1, 1)
    assert "65 dimensions" in refusal(A._replace(shape=(1,) * 65), signature=free)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            (A,),
            f"{UNKNOWN}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['a'], but missing required "
            "input(s) ['b']. Please provide all required input(s).",
        ),
        (
            (A, B, A._replace(name="c")),
            f"{UNKNOWN}expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['a','b','c'].",
        ),
        ((A, A), f"{UNKNOWN}input 'a' already exists in request"),
        ((A, B._replace(name="c")), "unexpected inference input 'c' for model 'm'"),
        (
            (A._replace(datatype="INT32"), B),
            f"{UNKNOWN}inference input 'a' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            (A._replace(datatype="float"), B),
            f"{UNKNOWN}inference input 'a' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            (A._replace(shape=(1, -1)), B),
            f"{UNKNOWN}All input dimensions should be specified for input 'a' for model 'm', got [1,-1]",
        ),
        ((A._replace(shape=(-5, 2)), B), f"{UNKNOWN}tensor 'a' contains an invalid dimension [-5,2]"),
        (
            (A._replace(shape=(2,)), B),
            f"{UNKNOWN}unexpected shape for input 'a' for model 'm'. Expected [-1,2], got [2].",
        ),
        (
            (A._replace(shape=(2, 2)), B),
            f"{UNKNOWN}input byte size mismatch for input 'a' for model 'm'. Expected 16, got 8",
        ),
        (
            (A._replace(shape=(2**62, 2)), B),
            "invalid shape for input 'a': shape [4611686018427387904,2] causes total element count to exceed maximum "
            "size of 9223372036854775807",
        ),
        (
            (A._replace(shape=(2**60, 2)), B),
            "byte size overflow for input 'a': element count (2305843009213693952) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
        # The first fault in Triton's order, not in that of the inputs.
        ((A._replace(data=b""), B._replace(shape=(1, 1))), "unexpected shape for input 'b'"),
        (
            (A, B._replace(data=WORD[:3])),
            f"{UNKNOWN}incomplete string length indicator for inference input 'b' for model 'm', expecting 4 bytes but "
            "only 3 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            (A, B._replace(data=WORD[:-1])),
            f"{UNKNOWN}incomplete string data for inference input 'b' for model 'm', expecting string of length 2 but "
            "only 1 bytes available",
        ),
        (
            (A, B._replace(data=WORD * 2)),
            f"{UNKNOWN}unexpected number of string elements 2 for inference input 'b' for model 'm', expecting 1",
        ),
        (
            (A, B._replace(shape=(3,))),
            f"{UNKNOWN}expected 3 string elements for inference input 'b' for model 'm', got 1",
        ),
        (
            (A._replace(data=InferTensorContents(fp32_contents=[1])), B),
            f"{UNKNOWN}input byte size mismatch for input 'a' for model 'm'. Expected 8, got 4",
        ),
        (
            (A._replace(data=InferTensorContents()), B),
            f"{UNKNOWN}input byte size mismatch for input 'a' for model 'm'. Expected 8, got 0",
        ),
        (
            (A._replace(data=InferTensorContents(int_contents=[1, 2])), B),
            "unexpected explicit tensor data for input tensor 'a' for model 'm' of type 'INT32', expected datatype "
            "'FP32'",
        ),
        (
            (A._replace(data=InferTensorContents(fp32_contents=[1, 2], bool_contents=[True])), B),
            "unexpected explicit tensor data for input tensor 'a' for model 'm', binary data was already supplied.",
        ),
        (
            (A, B._replace(data=InferTensorContents(bytes_contents=[b"", b""]))),
            f"{UNKNOWN}expected 1 string elements for inference input 'b' for model 'm', got 2",
        ),
    ],
)
def test_a_mismatch_is_refused_with_triton_s_message(inputs: tuple[InputTensor, ...], message: str) -> None:
    assert message in refusal(*inputs)


def test_messages_name_the_request() -> None:
    assert refusal(A, A, id="7") == "[request id: 7] input 'a' already exists in request"


def test_typed_contents_out_of_range_are_refused() -> None:
    signature = Signature("s", {"a": TensorSpec("a", np.dtype(np.int8), (None,))}, {})
    tensor = InputTensor("a", "INT8", (1,), InferTensorContents(int_contents=[300]))
    assert "INT8 has the value 300, expected -128 to 127" in refusal(tensor, signature=signature)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_typed_contents(datatype: str) -> None:
    tensor = InputTensor("a", datatype, (1,), InferTensorContents())
    assert "data-type is" in refusal(tensor, B)


def test_a_dtype_without_datatype_is_refused() -> None:
    signature = Signature("s", {"a": TensorSpec("a", np.dtype(np.complex64), (None, 2))}, {})
    message = refusal(A, signature=signature, kind=Unimplemented)
    assert message == "input 'a' of model 'm': dtype complex64 has no datatype in the Open Inference Protocol"


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([RequestedOutput("z")], "unexpected inference output 'z' for model 'm'"),
        ([RequestedOutput("y")] * 2, f"{UNKNOWN}output 'y' already exists in request"),
    ],
)
def test_wrong_outputs_are_refused(outputs: list[RequestedOutput], message: str) -> None:
    assert refusal(A, B, outputs=outputs) == message


@pytest.mark.parametrize("data", [b"", [], [1], InferTensorContents()])
@pytest.mark.parametrize("shape", [(2**40, 2), (2**62, 2), (0, 2**62, 2**62)])
def test_a_declared_shape_allocates_nothing(shape: tuple[int, ...], data: Any) -> None:  # noqa: ANN401  # one of the forms
    free = Signature("s", {"a": TensorSpec("a", FLOAT, None)}, {})
    tracemalloc.start()
    assert refusal(InputTensor("a", "FP32", shape, data), signature=free)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_many_strings_in_binary_form_are_refused_before_they_take_memory() -> None:
    signature = Signature("s", {"x": TensorSpec("x", np.dtype(np.object_), (None,))}, {})
    request = InferenceRequest(inputs=[InputTensor("x", "BYTES", [1000], bytes(4000))])
    assert decode_inputs("m", signature, request, DecodedBudget(160_000))["x"].tolist() == [b""] * 1000
    with pytest.raises(InvalidArgument, match=r"about 160000 bytes when decoded \(1000 strings\)"):
        decode_inputs("m", signature, request, DecodedBudget(159_999))


FLOAT, STRING = np.dtype(np.float32), np.dtype(np.object_)


def decode_raw_body(shape: tuple[int | None, ...] | None, body: bytes, dtype: np.dtype = FLOAT) -> Array:
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
    array = decode_raw_body(shape, np.arange(6, dtype=np.float32).tobytes())
    assert (array.shape, array.reshape(-1).tolist()) == (deduced, [0, 1, 2, 3, 4, 5])


def test_a_string_is_the_whole_body() -> None:
    assert decode_raw_body((None, 1), b"ab\0", STRING).tolist() == [[b"ab\0"]]


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
        decode_raw_body(shape, body, dtype)
    assert message in caught.value.message


def test_a_model_with_several_inputs_is_refused() -> None:
    spec = TensorSpec("x", FLOAT, (None,))
    with pytest.raises(InvalidArgument, match=r"Raw request must only have 1 input .* but got 2 inputs in 'm' model"):
        decode_inputs("m", Signature("s", {"x": spec, "y": spec}, {}), InferenceRequest(raw_input=b""))
