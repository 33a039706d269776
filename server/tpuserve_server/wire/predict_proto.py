"""PredictRequest and PredictResponse: converts bytes to the core's types and back."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from tpuserve_formats.dtypes import DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import PredictRequest, TensorProto
from tpuserve_formats.predict_request import encode_inputs, map_key
from tpuserve_formats.tensor_proto import (
    RepeatBudget,
    TooManyRows,
    declared_shape,
    encode_tensor,
    encode_tensor_head,
)
from tpuserve_formats.tensor_proto import decode_tensor as decode
from tpuserve_formats.varint import varint
from tpuserve_server.core.batching.parameters import too_many_rows
from tpuserve_server.core.terms.errors import Internal, InvalidArgument
from tpuserve_server.core.terms.types import Array, Body, ModelSpec, PredictResult, ServableId, Tensors
from tpuserve_server.wire.model_messages import decode_model_spec, encode_model_spec

# The setting that limits repeated values: they may take as much memory as the longest message.
_BUDGET: Final = "max_request_bytes"
_NO_CONTENTS: Final[Mapping[str, memoryview]] = {}


def parse_predict_request(body: Body) -> PredictRequest:
    """Parse a PredictRequest. Raises InvalidArgument if `body` is malformed."""
    try:
        return PredictRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed PredictRequest") from None


def decode_predict_spec(proto: PredictRequest) -> ModelSpec:
    """Return the model spec of a request. Raises InvalidArgument if it is missing or names no model."""
    if not proto.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    spec = decode_model_spec(proto.model_spec)
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return spec


def decode_predict_inputs(
    proto: PredictRequest,
    max_repeated_bytes: int,
    max_repeated_rows: float = math.inf,
    contents: Mapping[str, memoryview] = _NO_CONTENTS,
    check_shape: Callable[[str, tuple[int, ...]], None] | None = None,
) -> dict[str, Array]:
    """Return the tensors as arrays, some of them views of the message. Raises InvalidArgument for a malformed tensor.

    `check_shape` gets the name and the declared shape of each tensor before its values take memory, and may raise.
    `contents` has the tensor_content of the inputs whose message lacks it (predict_layout.py).

    A short message can use up to `max_repeated_bytes` of memory, for at most `max_repeated_rows` rows. The caller
    should first check that the model exists and has these inputs.
    """
    budget = RepeatBudget(max_repeated_bytes, max_rows=max_repeated_rows, name=_BUDGET)
    inputs = {}
    for name, tensor in proto.inputs.items():
        try:
            if check_shape is not None:
                check_shape(name, declared_shape(tensor.tensor_shape))
            inputs[name] = decode(tensor, budget, content=contents.get(name))
        except TooManyRows as error:
            raise too_many_rows(error.rows, int(max_repeated_rows), splits=True) from None
        except FormatError as error:
            raise _unreadable(name, error) from None
    return inputs


def decode_tensor(alias: str, proto: TensorProto, budget: RepeatBudget | None = None) -> Array:
    """Decode `proto` to an array. Raises InvalidArgument that names `alias`, the name of the input."""
    try:
        return decode(proto, budget)
    except FormatError as error:
        raise _unreadable(alias, error) from None


def _unreadable(alias: str, error: FormatError) -> InvalidArgument:
    # Upstream's message ends after the name (tensorflow_serving/servables/tensorflow/tfrt_predict_util.cc).
    return InvalidArgument(f"tensor parsing error: {alias}: {error}")


def encode_predict_request(servable: ServableId, signature_name: str, inputs: Tensors) -> bytes:
    """Serialize a PredictRequest for this version and signature, with tensors as tensor_content."""
    spec = encode_model_spec(servable, signature_name)
    try:
        return b"".join((b"\x0a", varint(len(spec)), spec, encode_inputs(inputs)))
    except FormatError as error:
        raise Internal(str(error)) from None


def encode_predict_response(result: PredictResult, *, as_content: bool = False) -> bytes:
    """Serialize a PredictResponse directly: a third of the cost of filling messages, and no lists.

    Its spec carries the numeric version and the resolved signature, never a label.
    """
    parts: list[bytes] = []
    for name, array in result.outputs.items():
        try:
            tensor = encode_tensor(array, as_content=as_content)
        except FormatError as error:
            raise Internal(str(error)) from None
        parts += (*_entry_head(name, len(tensor)), tensor)
    parts.append(_response_spec(result.servable, result.signature_name))
    return b"".join(parts)


class ResponseTemplate:
    """The PredictResponses of one version and signature whose outputs have the same names, dtypes and shapes.

    They differ only in the bytes of their arrays, so that everything else is encoded once.
    """

    __slots__ = ("_outputs", "_tail")

    def __init__(self, outputs: tuple[tuple[str, DType, tuple[int, ...], bytes], ...], tail: bytes) -> None:
        """Create it with the outputs, each with the bytes before those of its array, and the bytes after the last."""
        self._outputs = outputs
        self._tail = tail

    @classmethod
    def of(cls, result: PredictResult, *, as_content: bool = False) -> "ResponseTemplate | None":
        """Return the template of `result`, or None if other values may take another number of bytes."""
        outputs = []
        for name, array in result.outputs.items():
            head = encode_tensor_head(array.dtype, array.shape, as_content=as_content)
            if head is None:
                return None
            entry = b"".join((*_entry_head(name, len(head) + array.nbytes), head))
            outputs.append((name, array.dtype, array.shape, entry))
        return cls(tuple(outputs), _response_spec(result.servable, result.signature_name))

    def encode(self, outputs: Tensors, request_id: bytes = b"") -> bytes | None:
        """Return the bytes of `encode_predict_response`, or None if the outputs are not those of the template.

        The protocol has no ids.
        """
        if len(outputs) != len(self._outputs):
            return None
        if len(outputs) == 1:
            # Most models have one output, and the loop takes twice as long.
            ((name, array),), ((expected_name, dtype, shape, head),) = outputs.items(), self._outputs
            if array.shape != shape or array.dtype != dtype or name != expected_name:
                return None
            return b"".join((head, array.tobytes(), self._tail))
        parts: list[bytes] = []
        for (name, array), (expected_name, dtype, shape, head) in zip(outputs.items(), self._outputs, strict=True):
            if array.shape != shape or array.dtype != dtype or name != expected_name:
                return None
            parts += (head, array.tobytes())
        parts.append(self._tail)
        return b"".join(parts)


def _entry_head(name: str, tensor_bytes: int) -> tuple[bytes, ...]:
    """Encode outputs = 1: {key = 1, value = 2} up to the tensor, which has `tensor_bytes`."""
    key, tensor_length = map_key(name), varint(tensor_bytes)
    entry_length = len(key) + 1 + len(tensor_length) + tensor_bytes
    return (b"\x0a", varint(entry_length), key, b"\x12", tensor_length)


@lru_cache(maxsize=1024)
def _response_spec(servable: ServableId, signature_name: str) -> bytes:
    """Encode model_spec = 2 with its tag."""
    spec = encode_model_spec(servable, signature_name)
    return b"".join((b"\x12", varint(len(spec)), spec))
