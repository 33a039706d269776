"""Ragged inputs: lists of rows become the values and row splits that the model takes."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from tpuserve_client.model import Signature


def split_names(name: str, signature: Signature) -> tuple[str, ...]:
    """Return inputs that may hold row splits of `name`, outermost first. TensorFlow names them `ids_1`, `ids_2`."""
    found: list[str] = []
    while _may_hold_splits(signature, one := f"{name}_{len(found) + 1}"):
        found.append(one)
    return tuple(found)


def _may_hold_splits(signature: Signature, name: str) -> bool:
    spec = signature.inputs.get(name)
    return spec is not None and spec.dtype in (np.int32, np.int64) and spec.shape is not None and len(spec.shape) == 1


def pack_rows(inputs: Mapping[str, object], signature: Signature) -> dict[str, object]:
    """Replace each list of rows for a ragged input by its values and row splits.

    Metadata does not name ragged inputs. An input counts as ragged if its value is a list of lists, and the caller
    omits the inputs that may hold its row splits. Other values stay unchanged.
    """
    packed = dict(inputs)
    for name, value in inputs.items():
        splits = split_names(name, signature)
        if splits and not packed.keys() & set(splits):
            packed |= _pack(name, value, splits)
    return packed


def _pack(name: str, value: object, splits: tuple[str, ...]) -> dict[str, object]:
    items: Any = value
    packed = dict[str, object]()
    for split in splits:
        if not isinstance(items, list | tuple) or not all(_is_row(row) for row in items):
            return {name: value}
        packed[split] = [0, *accumulate(map(len, items))]
        items = list(chain.from_iterable(items))
    return {name: items, **packed}


def _is_row(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
