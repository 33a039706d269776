"""Blank rows for warm-up and trials of signatures without recorded requests."""

from collections.abc import Sequence

import numpy as np

from tpuserve_server.core.batching.sequences import Sequences
from tpuserve_server.core.terms.types import Signature, Tensors


def blank_rows(
    signature: Signature, rows: int, sequences: Sequences | None = None, lengths: Sequence[int] = ()
) -> Tensors:
    """Make `rows` rows of zeros and empty strings. Sequences are `lengths` long; other free dimensions are 1."""
    specs = signature.inputs
    inner = {
        name: tuple(1 if size is None else size for size in (spec.shape or ())[1:]) for name, spec in specs.items()
    }
    if sequences is not None:
        inner = sequences.row_shapes(inner, lengths)
    blank = {
        name: np.full((rows, *inner[name]), b"" if spec.dtype.hasobject else 0, spec.dtype)
        for name, spec in specs.items()
    }
    splits = [name for names in signature.ragged_inputs.values() for name in names]
    return blank | {name: np.arange(rows + 1, dtype=specs[name].dtype) for name in splits}
