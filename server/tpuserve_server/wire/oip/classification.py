"""Classification extension: the largest values of an output as strings `value:index:label`.

Source: Triton's server/docs/protocol/extension_classification.md and classification.cc. The value comes first.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tpuserve_formats.dtypes import STRING
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, TensorSpec

_SUPPORTED: Final = frozenset("iuf")
_UNSUPPORTED: Final = frozenset({"FP16", "BF16"})
# classification.cc, the limit of an item's elements.
_MAX_ELEMENTS: Final = 1_000_000


def classify(array: Array, spec: TensorSpec, count: int, labels: Sequence[str]) -> Array:
    """Return the `count` largest values of each item, largest first, as strings: `[batch, count]`, or `[count]`.

    An item is a row if the output has a batch dimension, and otherwise the whole output. Items with fewer elements give
    fewer strings. `labels` apply to items with as many elements as there are labels. Equal values keep their order.

    Raises:
        InvalidArgument: the dtype is not numeric, or an item has more than a million elements.
    """
    _check_dtype(array)
    has_batch = array.ndim > 1 if spec.shape is None else spec.has_batch_dimension
    rows = array.shape[0] if has_batch else 1
    elements = math.prod(array.shape[1:] if has_batch else array.shape)
    items = array.reshape(rows, elements)
    if elements > _MAX_ELEMENTS:
        raise InvalidArgument("classification output tensor too large")
    strings = np.empty((rows, min(count, elements)), STRING)
    suffixes = [f":{label}" if label else "" for label in labels] if len(labels) == elements else [""] * elements
    for row, item in zip(strings, items, strict=True):
        row[:] = [_text(item[index], int(index), suffixes) for index in _largest(item, len(row))]
    return strings if has_batch else strings[0]


def _check_dtype(array: Array) -> None:
    try:
        datatype = datatype_of(array.dtype)
    except FormatError:
        datatype = str(array.dtype).upper()
    if array.dtype.kind not in _SUPPORTED or datatype in _UNSUPPORTED:
        raise InvalidArgument(f"class result not available for output due to unsupported type '{datatype}'")


def _largest(item: Array, count: int) -> Array:
    """Return the indices of the largest values, the first of equal values first."""
    # A sort of the reversed array, read backwards, is descending and stable, for unsigned integers as well.
    ascending = np.argsort(item[::-1], kind="stable")
    order: Array = len(item) - 1 - ascending[::-1]
    return order[:count]


def _text(value: "np.generic", index: int, suffixes: Sequence[str]) -> bytes:
    # C++'s std::to_string prints floats with six decimals.
    number = f"{value:f}" if value.dtype.kind == "f" else str(value)
    return f"{number}:{index}{suffixes[index]}".encode()
