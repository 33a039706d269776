"""Checks of a request against a signature, with Triton's messages (core, infer_request.cc, Normalize)."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import DATATYPES, datatype_of, dtype_of
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown, shown_names
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor, RequestedOutput
from tpuserve_server.wire.oip.metadata import shape_sizes

# numpy's limit on dimensions.
_MAX_RANK: Final = 64
_MOST_SHOWN: Final = 256
_MAX_INT64: Final = (1 << 63) - 1
_KNOWN_DATATYPES: Final = frozenset(DATATYPES)

_Shape: TypeAlias = Sequence[int]


class Subject:
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


def check_names(subject: Subject, signature: Signature, request: InferenceRequest) -> None:
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


def check_input(subject: Subject, spec: TensorSpec, tensor: InputTensor) -> int:
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
            f"{shape_text(shape_sizes(spec))}, got {shape_text(shape)}."
        )
    if len(shape) > _MAX_RANK:
        raise InvalidArgument(f"input '{name}' has {len(shape)} dimensions, at most {_MAX_RANK} are supported")
    return math.prod(shape)


def check_size(subject: Subject, tensor: InputTensor, count: int, size_bytes: int) -> None:
    """Check the size of the data of `count` elements, which are not strings. Raises InvalidArgument."""
    item_bytes = dtype_of(tensor.datatype).itemsize
    expected_bytes = count * item_bytes
    if expected_bytes == size_bytes:
        return
    if count > _MAX_INT64:
        raise InvalidArgument(
            f"invalid shape for input '{tensor.name}': shape {shape_text(tensor.shape)} causes total element count to "
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


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as Triton prints it: [1,-1]."""
    sizes = [str(size) for size in islice(shape, _MOST_SHOWN + 1)]
    return f"[{','.join([*sizes[:_MOST_SHOWN], '…'] if len(sizes) > _MOST_SHOWN else sizes)}]"


def _datatype(subject: Subject, spec: TensorSpec) -> str:
    try:
        return datatype_of(spec.dtype)
    except FormatError as error:
        raise Unimplemented(f"input '{spec.name}' of model '{subject.model}': {error}") from None


def _check_outputs(subject: Subject, signature: Signature, outputs: Sequence[RequestedOutput]) -> None:
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


def _wrong_count(subject: Subject, known: int, optional: int, names: set[str], missing: list[str]) -> str:
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


def _negative(subject: Subject, name: str, shape: _Shape) -> str:
    if min(shape) == -1:
        return (
            f"{subject.prefix}All input dimensions should be specified for input '{name}' for model "
            f"'{subject.model}', got {shape_text(shape)}"
        )
    return f"{subject.prefix}tensor '{name}' contains an invalid dimension {shape_text(shape)}"
