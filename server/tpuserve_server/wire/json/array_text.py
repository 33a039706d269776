"""JSON text of arrays and of nested lists of arrays and strings, with bare tokens for numbers that are not finite."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from tpuserve_server.core.types import Array

# orjson holds the GIL for a few milliseconds to write so many numbers or strings.
_PART_VALUES: Final = 1 << 16
_PART_ITEMS: Final = 1 << 13

# A numeric array that orjson takes, or nested lists of str, {"b64": str} and such arrays.
Column = Any


def array_text(value: Column) -> bytes:
    """Return `value` as JSON. NaN and infinities are the tokens NaN, Infinity and -Infinity."""
    if _is_long(value):
        # Joining releases the GIL for long parts, and formatting does not.
        return b"".join((b"[", b",".join(_texts(value)), b"]"))
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" not in text:
        return text
    numbers = [np.asarray(array).reshape(-1) for array in _arrays(value)]
    return _with_tokens(text, np.concatenate(numbers)) if numbers else text


def _is_long(value: Column) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and len(value) > 0 and value.size > _PART_VALUES
    return isinstance(value, list) and len(value) > _PART_ITEMS


def _texts(value: Column) -> Iterator[bytes]:
    """Yield the text of a long column in parts, so that other threads run between them."""
    step = _PART_ITEMS
    if isinstance(value, np.ndarray):
        step = _PART_VALUES * len(value) // value.size
    if step < 2:
        yield from (array_text(item) for item in value)
        return
    for start in range(0, len(value), step):
        yield array_text(value[start : start + step])[1:-1]


def _arrays(value: Column) -> Iterator[Any]:
    """Yield the numeric arrays and scalars of a column in order, without strings."""
    if isinstance(value, np.ndarray | np.floating):
        yield value
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, str):
                yield from _arrays(item)


def _with_tokens(text: bytes, values: Array) -> bytes:
    """Replace each null in `text` by its number's token. orjson writes null for a number that is not finite."""
    special = values[~np.isfinite(values)]
    tokens = [b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity" for value in special]
    between = text.split(b"null")
    parts = [part for pair in zip(between, tokens, strict=False) for part in pair]
    return b"".join((*parts, between[-1]))
