"""Requests of arrays before they are encoded: from a file and divided into requests, or random for the model."""

import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from tpuserve_client.arrays import as_array
from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.exchange import Exchange
from tpuserve_client.json_tensor import from_json
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.distribution import Distribution
from tpuserve_loadtests.requests.wires import encode_golden, predict_exchange

# Limit for different requests, which are sent in turn. They must be few enough to encode in advance.
MAX_REQUESTS: Final = 1024
RANDOM_REQUESTS: Final = 32
# Enough requests to represent a distribution, except its rare values.
DRAWN_REQUESTS: Final = 256
RANDOM_SEED: Final = 20
# Key for lengths that apply to every input.
EVERY_INPUT: Final = ""
ONE: Final = Distribution.choice({1: 1.0})


class Request(Protocol):
    """A request, independent of model and protocol."""

    @property
    def rows(self) -> int: ...

    @property
    def golden(self) -> bytes:
        """The expected response as a PredictResponse, or empty if it is unknown."""

    @property
    def output_filter(self) -> tuple[str, ...]:
        """The outputs that the request names, or empty for all."""

    def exchange(self, spec: ModelSpec, protocol: protocols.Protocol) -> Exchange:
        """Return the encoded request. Raises InvalidArgument for arrays that cannot be encoded."""


@dataclass(frozen=True, slots=True, eq=False)  # a comparison of arrays has no single truth value
class ArrayRequest:
    """Arrays by input name, in the client's encoding. `outputs` are the expected response, if known."""

    inputs: Mapping[str, Array]
    signature_name: str
    rows: int
    outputs: Mapping[str, Array] = field(default_factory=dict)
    output_filter: tuple[str, ...] = ()

    @property
    def golden(self) -> bytes:
        """The expected response, as in Request."""
        return encode_golden(self.outputs) if self.outputs else b""

    def exchange(self, spec: ModelSpec, protocol: protocols.Protocol) -> Exchange:
        """Return the encoded request: gRPC with `tensor_content`, REST in the columnar format, OIP as its wires do."""
        return predict_exchange(protocol, spec, self.inputs, self.signature_name)


def array_requests(
    signature: Signature,
    *,
    rows: Distribution | None = None,
    lengths: Mapping[str, Distribution] | None = None,
    inputs: Mapping[str, Array] | None = None,
    outputs: Mapping[str, Array] | None = None,
) -> Iterator[ArrayRequest]:
    """Return at most MAX_REQUESTS requests of `rows` rows (default 1), from `inputs` or with random arrays.

    If `inputs` has more rows than a request, the function divides them into several requests. If it has fewer, rows
    repeat. A model without a batch dimension receives the inputs unchanged. `lengths` gives random inputs' free
    dimensions except the first (default 1), by input or for EVERY_INPUT, which uses equal lengths within a request.
    `outputs` are the expected responses for `inputs`, row by row. Raises BadInput for unsuitable arguments.
    """
    if not has_rows(signature) and rows is not None and rows.values != (1,):
        raise BadInput("the model has no batch dimension, so a request cannot contain several rows")
    if inputs is not None and lengths:
        raise BadInput("lengths apply only to random inputs, not to inputs from a file")
    if inputs is None:
        return _random(signature, rows or ONE, lengths or {})
    if not has_rows(signature):
        return iter([ArrayRequest(inputs, signature.name, 1, outputs or {})])
    return _slices(signature, inputs, outputs or {}, rows or ONE)


def own_requests(signature: Signature, payloads: Iterable[Mapping[str, Any]]) -> Iterator[ArrayRequest]:
    """Yield a request for each of the first MAX_REQUESTS payloads, which are values by input name.

    A value without the first dimension is one row. Raises BadInput for names, shapes and values that do not match, and
    InvalidArgument for values that no tensor can hold.
    """
    for payload in islice(payloads, MAX_REQUESTS):
        values = {name: _with_rows(as_array(value), signature.inputs.get(name)) for name, value in payload.items()}
        inputs = fitted(values, signature)
        rows = {len(array) for array in inputs.values()} if has_rows(signature) else {1}
        if len(rows) != 1:
            raise BadInput(f"every input needs the same number of rows, received {sorted(rows)}")
        yield ArrayRequest(inputs, signature.name, rows.pop())


def _with_rows(array: Array, spec: TensorSpec | None) -> Array:
    is_row = spec is not None and spec.shape is not None and spec.shape[:1] == (None,) and array.ndim < len(spec.shape)
    return array[np.newaxis] if is_row else array


def _slices(
    signature: Signature, inputs: Mapping[str, Array], outputs: Mapping[str, Array], rows: Distribution
) -> Iterator[ArrayRequest]:
    found = {len(array) for array in inputs.values()}
    if len(found) != 1 or 0 in found:
        raise BadInput(f"every input needs the same number of rows, at least one, received {sorted(found)}")
    (length,) = found
    count = math.ceil(length / rows.mean)
    if not rows.is_fixed:
        count = max(count, DRAWN_REQUESTS)
    sizes = rows.draw(min(count, MAX_REQUESTS), np.random.default_rng(RANDOM_SEED)).tolist()
    return (
        ArrayRequest(
            _rows_of(inputs, start, size, length), signature.name, size, _rows_of(outputs, start, size, length)
        )
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)
    )


def _rows_of(inputs: Mapping[str, Array], start: int, size: int, length: int) -> dict[str, Array]:
    chosen = (np.arange(size) + start) % length
    return {name: array[chosen] for name, array in inputs.items()}


def _random(signature: Signature, rows: Distribution, lengths: Mapping[str, Distribution]) -> Iterator[ArrayRequest]:
    _check_lengths(signature, lengths)
    random = np.random.default_rng(RANDOM_SEED)
    fixed = all(distribution.is_fixed for distribution in (rows, *lengths.values()))
    count = RANDOM_REQUESTS if fixed else DRAWN_REQUESTS
    sizes = rows.draw(count, random).tolist()
    drawn = {name: distribution.draw(count, random).tolist() for name, distribution in lengths.items()}
    return (
        ArrayRequest(
            random_inputs(signature, size, _lengths_of(signature, drawn, number), random), signature.name, size
        )
        for number, size in enumerate(sizes)
    )


def _lengths_of(signature: Signature, drawn: Mapping[str, list[int]], number: int) -> dict[str, int]:
    every = drawn.get(EVERY_INPUT)
    return {name: drawn[name][number] if name in drawn else every[number] if every else 1 for name in signature.inputs}


def _check_lengths(signature: Signature, lengths: Mapping[str, Distribution]) -> None:
    free = [name for name, spec in signature.inputs.items() if free_axes(spec)]
    for name in lengths:
        if not free:
            raise BadInput("lengths have no effect: no input of the model has a free dimension except the first")
        if name != EVERY_INPUT and name not in free:
            raise BadInput(f"input {name!r} has no free dimension except the first; expected one of {free}")


# Limit for random integers. Most are indices into a table, and almost every table has ten rows.
MAX_RANDOM_INTEGER = 10
# Errors of numpy for a truncated or corrupt file, and of json for thousands of nested brackets.
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RecursionError)
_NUMPY = b"\x93NUMPY"
INPUT_SUFFIXES = (".npz", ".npy", ".json")

_Json: TypeAlias = Any  # the result of json.loads, which the code below validates


class BadInput(ValueError):
    """Error for inputs that cannot be sent: an unreadable file, or names or shapes that do not match the model."""


def read_inputs(path: Path, signature: Signature) -> dict[str, Array]:
    """Read arrays by input name from a file, in the model's dtypes.

    The file is `.npz` with input names, `.npy` for a single input, or `.json`. JSON is a TensorFlow Serving request
    (`{"instances": …}` or `{"inputs": …}`) or an object of arrays by input name. A single input can also be a bare
    array. Raises BadInput.
    """
    if path.suffix not in INPUT_SUFFIXES:
        raise BadInput(
            f"{path} is not a file of inputs. Set a {', '.join(INPUT_SUFFIXES[:-1])} or {INPUT_SUFFIXES[-1]} file."
        )
    try:
        values = _from_json(path, signature) if path.suffix == ".json" else _from_numpy(path, signature)
    except UNREADABLE as error:
        raise BadInput(f"{path}: {error}") from None
    return fitted(values, signature)


def fitted(values: Mapping[str, Any], signature: Signature) -> dict[str, Array]:
    """Convert values by input name to arrays in the model's dtypes. Raises BadInput, or InvalidArgument."""
    _check_names(values, signature)
    return {name: fit(as_array(value), signature.inputs[name]) for name, value in values.items()}


def random_inputs(
    signature: Signature, rows: int, lengths: Mapping[str, int], random: np.random.Generator
) -> dict[str, Array]:
    """Return a random array for each input: `rows` in a free first dimension, its length in every other free dimension.

    Floats are in [0, 1), integers in [0, 10), strings are short texts. Raises BadInput for a dtype that numpy lacks.
    """
    return {name: _random_array(spec, rows, lengths[name], random) for name, spec in signature.inputs.items()}


def free_axes(spec: TensorSpec) -> tuple[int, ...]:
    """Return the free dimensions of an input except the first."""
    return tuple(axis for axis, size in enumerate(spec.shape or ()) if axis and size is None)


def has_rows(signature: Signature) -> bool:
    """Return whether every input has a free first dimension, so that a request can have any number of rows."""
    return all(spec.shape is None or spec.shape[:1] == (None,) for spec in signature.inputs.values())


def suits(shape: tuple[int | None, ...] | None, wanted: tuple[int | None, ...] | None) -> bool:
    """Return whether a shape has the rank and the fixed dimensions of `wanted`, where None permits any."""
    if wanted is None or shape == wanted:
        return True
    return (
        shape is not None
        and len(shape) == len(wanted)
        and all(want in (None, got) for want, got in zip(wanted, shape, strict=True))
    )


def fit(array: Array, spec: TensorSpec) -> Array:
    """Convert an array to the spec's dtype. Raises BadInput for a wrong rank, fixed dimension or kind of dtype."""
    if not suits(array.shape, spec.shape):
        raise BadInput(f"expected {spec} as in the model, received shape {list(array.shape)}")
    if spec.dtype is None or array.dtype == spec.dtype:
        return array
    if STRING in (array.dtype, spec.dtype) or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise BadInput(f"expected {spec} as in the model, received dtype {describe(array.dtype)}")
    converted: Array = array.astype(spec.dtype)
    return converted


def _from_numpy(path: Path, signature: Signature) -> dict[str, Array]:
    loaded = load_numpy(path)
    return loaded if isinstance(loaded, dict) else {_only_input(signature): loaded}


def load_numpy(path: Path) -> Array | dict[str, Array]:
    """Return the array of an `.npy` file, or the arrays of an `.npz` file by name. The suffix has no effect.

    Raises UNREADABLE.
    """
    with path.open("rb") as file:  # opened here: numpy leaves a broken archive open
        # numpy would report other files as pickles.
        if file.peek(len(_NUMPY))[: len(_NUMPY)] != _NUMPY and not zipfile.is_zipfile(file):
            raise BadInput("the content is not .npz or .npy, or is truncated")
        file.seek(0)
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return as_array(loaded)
        with loaded:
            return {name: as_array(loaded[name]) for name in loaded.files}


def _from_json(path: Path, signature: Signature) -> dict[str, Array]:
    return arrays_in(json.loads(path.read_text(encoding="utf-8")), signature)


def arrays_in(document: _Json, signature: Signature) -> dict[str, Array]:
    """Return arrays by input name from JSON in any format that read_inputs accepts. Raises ValueError."""
    columns = _columns(document, signature)
    _check_names(columns, signature)
    return {name: from_json(value, signature.inputs[name]) for name, value in columns.items()}


def _columns(document: _Json, signature: Signature) -> Mapping[str, _Json]:
    if not isinstance(document, dict):
        return {_only_input(signature): document}
    if "instances" in document and "instances" not in signature.inputs:
        return _columns_of_rows(document["instances"], signature)
    if "inputs" in document and "inputs" not in signature.inputs:
        return _columns(document["inputs"], signature)
    return document


def _columns_of_rows(rows: _Json, signature: Signature) -> Mapping[str, _Json]:
    if not isinstance(rows, list) or not rows:
        raise BadInput('"instances" must be a list of rows')
    if all(isinstance(row, dict) and row.keys() == signature.inputs.keys() for row in rows):
        return {name: [row[name] for row in rows] for name in signature.inputs}
    return {_only_input(signature): rows}


def _only_input(signature: Signature) -> str:
    if len(signature.inputs) != 1:
        raise BadInput(f"expected an array for each of {sorted(signature.inputs)}, received one without a name")
    return next(iter(signature.inputs))


def _check_names(values: Mapping[str, object], signature: Signature) -> None:
    if values.keys() != signature.inputs.keys():
        raise BadInput(f"expected {sorted(signature.inputs)} as in the model, received {sorted(values)}")


def _random_array(spec: TensorSpec, rows: int, length: int, random: np.random.Generator) -> Array:
    if spec.dtype is None:
        raise BadInput(f"input {spec.name} has a dtype that numpy does not support. Set --input.")
    shape = (None,) if spec.shape is None else spec.shape
    sizes = [size if size is not None else (rows if axis == 0 else length) for axis, size in enumerate(shape)]
    if spec.dtype == STRING:
        # Requests must differ, because equal golden answers cannot reveal a mix-up.
        numbers = random.integers(0, MAX_RANDOM_INTEGER, sizes)
        return np.array([b"tpuserve %d" % number for number in numbers.flat], STRING).reshape(sizes)
    if spec.dtype.kind in "iu":
        return random.integers(0, MAX_RANDOM_INTEGER, sizes).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return random.integers(0, 2, sizes).astype(spec.dtype)
    return random.random(sizes).astype(spec.dtype)
