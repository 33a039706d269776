"""An example of a REST request for a signature, with zeros, `false` and empty strings as values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

_DEFAULT_SIGNATURE: Final = "serving_default"
# An example with more values is too long for a script.
_MOST_VALUES: Final = 1024
_VALUES: Final = {"string": "", "bool": False, "float16": 0.0, "bfloat16": 0.0, "float32": 0.0, "float64": 0.0}


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TensorRow(_Row):
    """An input in a manifest. None in `shape` is a free dimension, and a `shape` of None an unknown rank."""

    dtype: str
    shape: tuple[int | None, ...] | None
    row_splits: tuple[str, ...] | None = None


class SignatureRow(_Row):
    """The inputs of a signature by name."""

    inputs: Mapping[str, TensorRow]


class SignatureRows(_Row):
    """The signatures in a manifest by name."""

    signatures: Mapping[str, SignatureRow]

    def example(self) -> dict[str, Any] | None:
        """Return a request with one instance for the default signature, or for the first one.

        Return None if JSON cannot express an input as rows, or if the example has more than 1,024 values.
        """
        names = list(self.signatures)
        if not names:
            return None
        name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in names else names[0]
        inputs = self.signatures[name].inputs
        values = {key: _row(tensor) for key, tensor in inputs.items()}
        if not values or None in values.values() or sum(_size(one) for one in inputs.values()) > _MOST_VALUES:
            return None
        instance = values if len(values) > 1 else next(iter(values.values()))
        parameters = {} if name == _DEFAULT_SIGNATURE else {"parameters": {"signature_name": name}}
        return {"instances": [instance], **parameters}

    @property
    def has_text(self) -> bool:
        """True if an input is a string, of which the example has empty ones."""
        return any(one.dtype == "string" for row in self.signatures.values() for one in row.inputs.values())


def _size(tensor: TensorRow) -> int:
    return math.prod(_sizes(tensor.shape or ()))


def _sizes(shape: Sequence[int | None]) -> list[int]:
    """Return the sizes without the rows, with 1 for each free dimension."""
    return [1 if size is None else size for size in shape[1:]]


def _row(tensor: TensorRow) -> Any:  # noqa: ANN401 - nested lists, or one value
    """Return the value of one row, or None for a tensor without rows, a ragged tensor, and a dtype without JSON."""
    value = 0 if "int" in tensor.dtype else _VALUES.get(tensor.dtype)
    if value is None or not tensor.shape or tensor.shape[0] is not None or tensor.row_splits is not None:
        return None
    if _size(tensor) > _MOST_VALUES:
        return None
    row: Any = value
    for size in reversed(_sizes(tensor.shape)):
        row = [row] * size
    return row
