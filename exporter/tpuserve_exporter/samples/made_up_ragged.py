"""Row splits of made-up ragged inputs."""

from collections.abc import Mapping, Sequence

import numpy as np

from tpuserve_exporter.signature import Array, Signature

# Lengths of rows in turn. Rows are not empty, because a model may compute their means.
_LENGTHS = (2, 1, 3)


def make_row_splits(signature: Signature, rows: int) -> tuple[dict[str, Array], Mapping[str, int]]:
    """Make the row splits of every ragged input by name, and count the values of each input, for `rows` rows."""
    splits, counts = dict[str, Array](), dict[str, int]()
    for name, spec in signature.inputs.items():
        count = _fixed_rows(signature, spec.row_splits) or rows
        for one in spec.row_splits:
            lengths = np.resize(_LENGTHS, count)
            splits[one] = np.concatenate([[0], np.cumsum(lengths)]).astype(signature.inputs[one].dtype)
            count = int(lengths.sum())
        if spec.row_splits:
            counts[name] = count
    return splits, counts


def _fixed_rows(signature: Signature, splits: Sequence[str]) -> int | None:
    """Return the number of rows of a ragged input, or None if its shape does not fix it."""
    shape = signature.inputs[splits[0]].shape if splits else None
    return shape[0] - 1 if shape and shape[0] is not None else None
