"""Input tensors of a request to arrays that match a signature.

The tensors are decoded first and checked afterwards, because almost all requests are valid. No decoder allocates memory
for a size that a request only declares. After a fault, the checks walk the request again in Triton's order, and raise
Triton's message for the first fault. Source: core, infer_request.cc (Normalize), and server, infer_handler.cc
(InferGRPCToInput).
"""

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from tpuserve_formats.dtypes import STRING
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import BYTES, DATATYPES, datatype_of, dtype_of
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_formats.oip.typed_contents import decode_typed
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, STRING_BYTES, DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown, shown_names
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.json.numbers import MAX_RANK
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor, RequestedOutput, TensorData
from tpuserve_server.wire.oip.metadata import datatype_text, shape_sizes
from tpuserve_server.wire.oip.tensor_json import ARRAYS, decode_json

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferTensorContents


_LENGTH: Final = struct.Struct("<I")
# The datatype that Triton names for a field.
_FIELD_DATATYPES: Final = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": BYTES,
}
# Datatypes that share the field of a larger one.
_SHARED_FIELDS: Final = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
}
_MOST_SHOWN: Final = 256
_MAX_INT64: Final = (1 << 63) - 1
_KNOWN_DATATYPES: Final = frozenset(DATATYPES)


class _Subject:
    """The request and the model that the messages of errors name."""

    __slots__ = ("_id", "model")

    def __init__(self, request_id: str, model: str) -> None:
        """Store the arguments. An empty `request_id` is shown as unknown."""
        self._id = request_id
        self.model = model

    @property
    def prefix(self) -> str:
        """The start of most messages (core, infer_request.h, LogRequest)."""
        return f"[request id: {shown(self._id) or '<id_unknown>'}] "


def decode_inputs(
    model: str,
    signature: Signature,
    request: InferenceRequest,
    budget: DecodedBudget = DEFAULT_DECODED,
    *,
    quickly: bool = False,
) -> dict[str, Array]:
    """Return the request's arrays by name. Raw contents become views of the request's bytes, except strings.

    Raises:
        TakesLong: with `quickly`, JSON data would take more than a millisecond.
        InvalidArgument: the request does not match the signature, its data do not match its shapes, or its strings
            would take more than `budget`.
        Unimplemented: the protocol has no datatype for a dtype of the model.
    """
    tensors, specs = request.inputs, signature.inputs
    if request.raw_input is not None:
        tensors = [_raw_input_tensor(_Subject(request.id, model), signature, request.raw_input)]
    arrays: dict[str, Array] = {}
    for name, datatype, shape, data in tensors:
        spec = specs.get(name)
        if spec is None:
            break
        try:
            array = _decode(name, datatype, shape, data, budget, quickly=quickly)
        except FormatError as error:
            raise _explain_mismatch(_Subject(request.id, model), signature, request, tensors, str(error)) from None
        if array.dtype != spec.dtype or not spec.accepts_shape(array.shape):
            raise _explain_mismatch(_Subject(request.id, model), signature, request, tensors, "")
        arrays[name] = array
    if len(arrays) != len(specs) or len(arrays) != len(tensors) or request.outputs:
        _check_names(_Subject(request.id, model), signature, request)
    return arrays


_BUFFERS = (bytes, memoryview)


def _decode(
    name: str, datatype: str, shape: Sequence[int], data: TensorData, budget: DecodedBudget, *, quickly: bool
) -> Array:
    if isinstance(data, _BUFFERS):
        if datatype == "BYTES":
            # Each string has a length of four bytes. A shorter buffer is refused below.
            strings = min(math.prod(shape), len(data) // 4)
            budget.check(strings * STRING_BYTES, f"{strings} strings")
        return decode_raw(datatype, shape, data)
    if not isinstance(data, ARRAYS):
        return decode_typed(datatype, shape, data)
    flat = decode_json(name, datatype, dtype_of(datatype), math.prod(shape), data, budget, quickly=quickly)
    try:
        return flat.reshape(shape)
    except ValueError:
        # numpy refuses more than 64 dimensions, and a huge shape even if the array is empty.
        raise FormatError(f"shape {list(shape)} is too large") from None


def _raw_input_tensor(subject: _Subject, signature: Signature, body: bytes | memoryview) -> InputTensor:
    """Return the only input with `body` as its data, and a shape that fits its size.

    It is the body of a REST request without JSON. One unknown dimension follows from the size. If there are two and one
    is the batch dimension, the batch has one row. Source: Triton's binary tensor data extension, "Raw Binary Request".

    Raises:
        InvalidArgument: the model has several inputs, or the shape cannot be deduced.
    """
    if len(signature.inputs) != 1:
        raise InvalidArgument(
            f"{subject.prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{subject.model}' model configuration"
        )
    ((name, spec),) = signature.inputs.items()
    if spec.dtype == STRING:
        return InputTensor(name, "BYTES", _single(subject, name, spec), _LENGTH.pack(len(body)) + body)
    return InputTensor(name, datatype_text(spec), _deduced(subject, name, spec, len(body)), body)


def _single(subject: _Subject, name: str, spec: TensorSpec) -> list[int]:
    if spec.shape is None or any(size not in (None, 1) for size in spec.shape):
        raise InvalidArgument(
            f"{subject.prefix}For BYTE datatype raw input '{name}', the model must have input shape [1]"
        )
    return [1] * len(spec.shape)


def _deduced(subject: _Subject, name: str, spec: TensorSpec, size_bytes: int) -> list[int]:
    if spec.shape is None:
        return [size_bytes // spec.dtype.itemsize]
    shape = list(spec.shape)
    if shape.count(None) == 2 and shape[0] is None:
        shape[0] = 1
    if shape.count(None) > 1:
        raise InvalidArgument(
            f"{subject.prefix}The shape of the raw input '{name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    # The check of the size refuses a remainder.
    unit_bytes = math.prod(size for size in shape if size is not None) * spec.dtype.itemsize
    return [size_bytes // unit_bytes if size is None and unit_bytes else size or 0 for size in shape]


def _explain_mismatch(
    subject: _Subject, signature: Signature, request: InferenceRequest, tensors: Sequence[InputTensor], fault: str
) -> InvalidArgument:
    """Return or raise the error for `tensors` that do not match. `fault` is the decoder's, for faults without another.

    Raises:
        InvalidArgument: from one of the checks.
        Unimplemented: the protocol has no datatype for a dtype of the model.
    """
    if request.raw_input is None:
        _check_names(subject, signature, request)
    counts = [_check_input(subject, signature.inputs[tensor.name], tensor) for tensor in tensors]
    for tensor, count in zip(tensors, counts, strict=True):
        _check_data(subject, tensor, count)
    names = shown_names([f"'{tensor.name}'" for tensor in tensors], ", ")
    return InvalidArgument(f"{subject.prefix}input {names} for model '{subject.model}': {fault}")


def _check_data(subject: _Subject, tensor: InputTensor, count: int) -> None:
    data = tensor.data
    if isinstance(data, ARRAYS):
        # Its decoder raises Triton's errors itself.
        return
    if not isinstance(data, bytes | memoryview):
        _check_typed(subject, tensor, count, data)
    elif tensor.datatype == BYTES:
        _check_strings(subject, tensor.name, count, data)
    else:
        _check_size(subject, tensor, count, len(data))


def _check_strings(subject: _Subject, name: str, count: int, data: bytes | memoryview) -> None:
    about = f"inference input '{name}' for model '{subject.model}'"
    position, found = 0, 0
    while position < len(data):
        remaining = len(data) - position
        if found == count:
            raise InvalidArgument(
                f"{subject.prefix}unexpected number of string elements {found + 1} for {about}, expecting {count}"
            )
        if remaining < _LENGTH.size:
            raise InvalidArgument(
                f"{subject.prefix}incomplete string length indicator for {about}, expecting {_LENGTH.size} bytes but "
                f"only {remaining} bytes available. Please make sure the string length indicator is in one buffer."
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size + length
        if position > len(data):
            raise InvalidArgument(
                f"{subject.prefix}incomplete string data for {about}, expecting string of length {length} but only "
                f"{remaining - _LENGTH.size} bytes available"
            )
        found += 1
    if found != count:
        raise InvalidArgument(f"{subject.prefix}expected {count} string elements for {about}, got {found}")


def _check_typed(subject: _Subject, tensor: InputTensor, count: int, contents: "InferTensorContents") -> None:
    about = f"for input tensor '{tensor.name}' for model '{subject.model}'"
    fields = {descriptor.name: len(values) for descriptor, values in contents.ListFields()}
    if len(fields) > 1:
        raise InvalidArgument(f"unexpected explicit tensor data {about}, binary data was already supplied.")
    for field in fields:
        if _FIELD_DATATYPES[field] != tensor.datatype and _SHARED_FIELDS.get(tensor.datatype) != field:
            raise InvalidArgument(
                f"unexpected explicit tensor data {about} of type '{_FIELD_DATATYPES[field]}', expected datatype "
                f"'{tensor.datatype}'"
            )
    got = sum(fields.values())
    if tensor.datatype != BYTES:
        _check_size(subject, tensor, count, got * dtype_of(tensor.datatype).itemsize)
    elif got != count:
        raise InvalidArgument(
            f"{subject.prefix}expected {count} string elements for inference input '{tensor.name}' for model "
            f"'{subject.model}', got {got}"
        )


def _check_names(subject: _Subject, signature: Signature, request: InferenceRequest) -> None:
    """Check the names of the requested outputs and of the inputs. Inputs with a default may be missing.

    Raises:
        InvalidArgument: a name is unknown or repeated, or an input is missing.
    """
    if request.outputs:
        _check_outputs(subject, signature, request.outputs)
    names = {tensor.name for tensor in request.inputs}
    if len(names) != len(request.inputs):
        repeated = _first_repeated(tensor.name for tensor in request.inputs)
        raise InvalidArgument(f"{subject.prefix}input '{repeated}' already exists in request")
    specs = signature.inputs
    if names == specs.keys():
        return
    known, optional = len(specs), len(signature.defaults)
    if not known - optional <= len(names) <= known:
        missing = [name for name in specs if name not in names and name not in signature.defaults]
        raise InvalidArgument(_wrong_count(subject, known, optional, names, missing))
    for name in names:
        if name not in specs:
            raise InvalidArgument(f"unexpected inference input '{name}' for model '{subject.model}'")


def _check_input(subject: _Subject, spec: TensorSpec, tensor: InputTensor) -> int:
    """Check an input's datatype and shape, and return its number of elements.

    Raises:
        InvalidArgument: the datatype or the shape does not match the signature, or the shape is impossible.
        Unimplemented: the protocol has no datatype for the model's dtype.
    """
    name, shape = tensor.name, tensor.shape
    expected = _datatype(subject, spec)
    if tensor.datatype != expected:
        got = tensor.datatype if tensor.datatype in _KNOWN_DATATYPES else "<invalid>"
        raise InvalidArgument(
            f"{subject.prefix}inference input '{name}' data-type is '{got}', but model '{subject.model}' expects "
            f"'{expected}'"
        )
    if shape and min(shape) < 0:
        raise InvalidArgument(_negative(subject, name, shape))
    if not spec.accepts_shape(tuple(shape)):
        raise InvalidArgument(
            f"{subject.prefix}unexpected shape for input '{name}' for model '{subject.model}'. Expected "
            f"{_shape_text(shape_sizes(spec))}, got {_shape_text(shape)}."
        )
    if len(shape) > MAX_RANK:
        raise InvalidArgument(f"input '{name}' has {len(shape)} dimensions, at most {MAX_RANK} are supported")
    return math.prod(shape)


def _check_size(subject: _Subject, tensor: InputTensor, count: int, size_bytes: int) -> None:
    """Check the size of the data of `count` elements, which are not strings. Raises InvalidArgument."""
    item_bytes = dtype_of(tensor.datatype).itemsize
    expected_bytes = count * item_bytes
    if expected_bytes == size_bytes:
        return
    if count > _MAX_INT64:
        raise InvalidArgument(
            f"invalid shape for input '{tensor.name}': shape {_shape_text(tensor.shape)} causes total element count to "
            f"exceed maximum size of {_MAX_INT64}"
        )
    if expected_bytes > _MAX_INT64:
        raise InvalidArgument(
            f"byte size overflow for input '{tensor.name}': element count ({count}) * data type size ({item_bytes}) "
            f"exceeds maximum allowed size ({_MAX_INT64})"
        )
    raise InvalidArgument(
        f"{subject.prefix}input byte size mismatch for input '{tensor.name}' for model '{subject.model}'. Expected "
        f"{expected_bytes}, got {size_bytes}"
    )


def _shape_text(shape: Iterable[int]) -> str:
    """Return a shape as Triton prints it: [1,-1]."""
    sizes = [str(size) for size in islice(shape, _MOST_SHOWN + 1)]
    return f"[{','.join([*sizes[:_MOST_SHOWN], '…'] if len(sizes) > _MOST_SHOWN else sizes)}]"


def _datatype(subject: _Subject, spec: TensorSpec) -> str:
    try:
        return datatype_of(spec.dtype)
    except FormatError as error:
        raise Unimplemented(f"input '{spec.name}' of model '{subject.model}': {error}") from None


def _check_outputs(subject: _Subject, signature: Signature, outputs: Sequence[RequestedOutput]) -> None:
    names = [output.name for output in outputs]
    if len({*names}) != len(names):
        raise InvalidArgument(f"{subject.prefix}output '{_first_repeated(names)}' already exists in request")
    for name in names:
        if name not in signature.outputs:
            raise InvalidArgument(f"unexpected inference output '{name}' for model '{subject.model}'")


def _first_repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("all names differ")


def _wrong_count(subject: _Subject, known: int, optional: int, names: set[str], missing: list[str]) -> str:
    expected = f"number of inputs between {known - optional} and {known}" if optional else f"{known} inputs"
    text = (
        f"{subject.prefix}expected {expected} but got {len(names)} inputs for model '{subject.model}'. Got input(s) "
        f"{_quoted(sorted(names))}"
    )
    if not missing:
        return f"{text}."
    return f"{text}, but missing required input(s) {_quoted(missing)}. Please provide all required input(s)."


def _quoted(names: Iterable[str]) -> str:
    return "[" + shown_names([f"'{name}'" for name in names]) + "]"


def _negative(subject: _Subject, name: str, shape: Sequence[int]) -> str:
    if min(shape) == -1:
        return (
            f"{subject.prefix}All input dimensions should be specified for input '{name}' for model "
            f"'{subject.model}', got {_shape_text(shape)}"
        )
    return f"{subject.prefix}tensor '{name}' contains an invalid dimension {_shape_text(shape)}"
