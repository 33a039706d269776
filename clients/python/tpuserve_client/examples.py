"""Conversion of callers' examples to the features of tf.train.Example. Independent of protobuf, like `arrays.py`."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from tpuserve_client.arrays import as_array, check_size
from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.names import named_values, shown

# An example of a caller: the value or the values of each feature, by name. A dict of numbers and texts has this type.
Example: TypeAlias = Mapping[str, object]
# Features by name: arrays with one dimension, of dtype int64, float32 or object (bytes).
Features: TypeAlias = Mapping[str, Array]

_FLOAT: Final = np.dtype(np.float32)
_INT: Final = np.dtype(np.int64)


def as_examples(examples: object) -> tuple[Features, ...]:
    """Convert a sequence of mappings from feature name to a value or values.

    Integers and bools become int64, other numbers float32, and text bytes. Arrays with several dimensions are sent in
    row-major order. Raises InvalidArgument for no example, and for values that no feature can hold.
    """
    if not isinstance(examples, Sequence) or isinstance(examples, str | bytes | bytearray | memoryview):
        raise InvalidArgument(f"Examples must be a sequence of mappings, not {shown(examples)}.")
    try:
        listed = tuple(examples)
    except Exception as error:  # a caller's class can raise anything
        raise InvalidArgument(f"Cannot read the examples: {error!r:.200}") from error
    if not listed:
        raise InvalidArgument("There are no examples. Pass at least one.")
    return tuple(as_features(example, f"Example {index}") for index, example in enumerate(listed))


def as_features(example: object, what: str) -> Features:
    """Convert one example, or a context. `what` names it in messages. Raises InvalidArgument like `as_examples`."""
    if not isinstance(example, Mapping):
        raise InvalidArgument(f"{what} must be a mapping from feature name to value, not {shown(example)}.")
    try:
        return {name: _feature(value) for name, value in named_values("name of a feature", example).items()}
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error.message}") from error.__cause__


def _feature(value: object) -> Array:
    array = as_array(value)
    check_size({"": array})
    flat = array.reshape(-1)
    if flat.dtype == STRING:
        return flat
    if flat.dtype.kind in "biu":
        if flat.dtype == np.uint64 and flat.size and flat.max() > np.iinfo(_INT).max:
            raise InvalidArgument("A feature has int64 values, which cannot represent the uint64 values.")
        return flat.astype(_INT, copy=False)
    if flat.dtype.kind == "c":
        raise InvalidArgument(f"A feature cannot hold {describe(flat.dtype)} values.")
    # A float out of range becomes infinite, as in the server. A signalling NaN becomes a quiet one.
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(_FLOAT, copy=False)
