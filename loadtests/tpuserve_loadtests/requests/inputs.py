"""The arrays that a load test sends: from a file, or random arrays that match the model's signature."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tpuserve_client.arrays import as_array
from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.json_tensor import from_json
from tpuserve_client.model import Signature, TensorSpec

# Limit for random integers. Most are indices into a table, and almost every table has ten rows.
MAX_RANDOM_INTEGER = 10
# Errors of numpy for a truncated or corrupt file, and of json for thousands of nested brackets.
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RecursionError)
_NUMPY = b"\x93NUMPY"
_SUFFIXES = (".npz", ".npy", ".json")

_Json: TypeAlias = Any  # the result of json.loads, which the code below validates


class BadInput(ValueError):
    """Error for inputs that cannot be sent: an unreadable file, or names or shapes that do not match the model."""


def read_inputs(path: Path, signature: Signature) -> dict[str, Array]:
    """Read arrays by input name from a file, in the model's dtypes.

    The file is `.npz` with input names, `.npy` for a single input, or `.json`. JSON is a TensorFlow Serving request
    (`{"instances": …}` or `{"inputs": …}`) or an object of arrays by input name. A single input can also be a bare
    array. Raises BadInput.
    """
    if path.suffix not in _SUFFIXES:
        raise BadInput(f"{path} is not a file of inputs. Set a {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file.")
    try:
        values = _from_json(path, signature) if path.suffix == ".json" else _from_numpy(path, signature)
    except UNREADABLE as error:
        raise BadInput(f"{path}: {error}") from None
    _check_names(values, signature)
    return {name: fit(array, signature.inputs[name]) for name, array in values.items()}


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


def fit(array: Array, spec: TensorSpec) -> Array:
    """Convert an array to the spec's dtype. Raises BadInput for a wrong rank, fixed dimension or kind of dtype."""
    if spec.shape is not None:
        known = [want in (None, got) for want, got in zip(spec.shape, array.shape, strict=False)]
        if len(spec.shape) != array.ndim or not all(known):
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
