"""Arrays by name from .npy, .npz and JSON content."""

import base64
import json
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def read_numpy(file: IO[bytes]) -> dict[str, Array]:
    """Read the arrays of an .npz file by name, or the array of an .npy file by the empty name.

    Raises ValueError, or OSError.
    """
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, np.ndarray) else {one: _read_part(loaded, one) for one in loaded}
    # A truncated file may end in its directory, in an entry's header or in compressed data. A header may have any size.
    except (EOFError, zipfile.BadZipFile, zlib.error, MemoryError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise ValueError(f"its part {name!r} is not an .npy file")
    return arrays


def _read_part(archive: Any, name: str) -> Any:  # noqa: ANN401 - numpy's, and an array or bytes
    try:
        return archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"its array {name!r} holds Python objects, and reading these could run code. Save texts as "
            "np.array(texts, str), and numbers with a numeric dtype"
        ) from error


def read_json(content: bytes) -> dict[str, Array]:
    """Read arrays by name, or one array by the empty name. Strings and {"b64": …} become bytes. Raises ValueError."""
    try:
        document = json.loads(content)
        is_named = isinstance(document, dict) and document.keys() != {"b64"}
        named = document if is_named else {"": document}
        return {name: _as_array(name, value) for name, value in named.items()}
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _as_array(name: str, value: object) -> Array:
    subject = repr(name) if name else "the value"
    try:
        decoded = next(_decode([value]))
        is_text = isinstance(decoded, bytes) or (isinstance(decoded, list) and _has_bytes(decoded))
        array = np.array(decoded, object) if is_text else np.array(decoded)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{subject} is not an array: {error}") from error
    if array.dtype == object and not all(isinstance(one, bytes) for one in array.flat):
        raise ValueError(f"{subject} is neither an array of numbers nor an array of strings")
    return array


def _decode(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield list(_decode(value))
        elif isinstance(value, dict):
            yield base64.b64decode(value["b64"], validate=True) if value.keys() == {"b64"} else value
        else:
            yield value.encode() if isinstance(value, str) else value


def _has_bytes(values: list[Any]) -> bool:
    return any(isinstance(one, bytes) or (isinstance(one, list) and _has_bytes(one)) for one in values)
