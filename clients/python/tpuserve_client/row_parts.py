"""Division of a large input into parts of rows, and the join of their outputs. Pure functions.

Rows are the first dimension of every input and every output.
"""

import operator
from collections.abc import Mapping, Sequence

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Prediction, Signature
from tpuserve_client.names import shown
from tpuserve_formats.counted import counted


def check_max_batch_size(value: object) -> int:
    """Return the largest number of rows in a request. Raises InvalidArgument unless it is a positive integer."""
    try:
        rows = operator.index(value)  # type: ignore[arg-type]  # TypeError says what it is not
    except Exception:  # __index__ of a caller's object can raise anything
        rows = 0
    if rows < 1 or isinstance(value, bool):
        raise InvalidArgument(f"max_batch_size must be a positive integer, not {shown(value)}.")
    return rows


def check_outputs_have_rows(spec: ModelSpec, signature: Signature, names: Sequence[str]) -> None:
    """Raise InvalidArgument if the signature shows that a requested output has no rows to join.

    Empty `names` mean every output. An output of unknown rank passes: `join_rows` checks what it contains.
    """
    for name, output in signature.outputs.items():
        if (names and name not in names) or output.shape is None:
            continue
        if not output.shape or output.shape[0] is not None:
            raise InvalidArgument(
                f"Model {spec}: output {output} has no dimension for rows, so outputs of parts cannot be joined. Omit "
                "max_batch_size, or omit this output with output_filter."
            )


def count_rows(spec: ModelSpec, arrays: Mapping[str, Array]) -> int:
    """Return the number of rows that all inputs share. Raises InvalidArgument if there is none."""
    if scalars := [name for name, array in arrays.items() if array.ndim == 0]:
        raise InvalidArgument(f"Model {spec}: input {scalars[0]} has no rows to divide. Omit max_batch_size.")
    rows = {name: len(array) for name, array in arrays.items()}
    if len({*rows.values()}) != 1:
        raise InvalidArgument(
            f"Model {spec}: inputs need equally many rows to divide, not {rows}. Omit max_batch_size."
        )
    return next(iter(rows.values()))


def split_rows(arrays: Mapping[str, Array], rows: int, max_batch_size: int) -> list[dict[str, Array]]:
    """Return parts of `max_batch_size` rows and a last part with the rest, as views. No rows at all are one part.

    Equal parts would need more padding on a server with buckets, which often has one of `max_batch_size` rows.
    """
    starts = range(0, rows, max_batch_size) or range(1)
    return [{name: array[start : start + max_batch_size] for name, array in arrays.items()} for start in starts]


def check_rows(prediction: Prediction, rows: int) -> None:
    """Raise InvalidArgument unless every output has a row for each row of the inputs."""
    for name, array in prediction.items():
        if array.ndim == 0 or len(array) != rows:
            raise InvalidArgument(
                f"Model {prediction.model}: output {name} has shape {list(array.shape)} for {counted(rows, 'row')}, so "
                "outputs of parts cannot be joined. Omit max_batch_size, or omit this output with output_filter."
            )


def join_rows(predictions: Sequence[Prediction]) -> Prediction:
    """Join the outputs of parts in order. Raises InvalidArgument for parts whose inner dimensions or dtypes differ."""
    if len(predictions) == 1:
        return predictions[0]
    first = predictions[0]
    outputs = {name: _joined(name, first.model, [part[name] for part in predictions]) for name in first}
    return Prediction(outputs, first.model, first.version, first.signature_name)


def _joined(name: str, model: str, arrays: Sequence[Array]) -> Array:
    if len({(array.shape[1:], array.dtype) for array in arrays}) != 1:
        kinds = sorted({f"{array.dtype}{list(array.shape[1:])}" for array in arrays})
        raise InvalidArgument(
            f"Model {model}: output {name} has rows of different shapes in its parts: {kinds}. Omit max_batch_size."
        )
    return np.concatenate(arrays)
