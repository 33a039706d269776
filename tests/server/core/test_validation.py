"""The quick look at a request's inputs agrees with the checks that know what is wrong (most: test_service.py)."""

import numpy as np
import pytest

from tpuserve_server.core.types import Signature, Tensors, TensorSpec
from tpuserve_server.core.validation import count_plain_rows

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
X, TWO = TensorSpec("x", FLOAT, (None, 3)), TensorSpec("n", INT, (None,))


def signature(*specs: TensorSpec) -> Signature:
    return Signature("serving_default", {spec.name: spec for spec in specs}, {})


@pytest.mark.parametrize(
    ("specs", "inputs", "rows"),
    [
        ([X], {"x": np.zeros((4, 3), FLOAT)}, 4),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(4, INT)}, 4),
        ([TensorSpec("x", FLOAT, None)], {"x": np.zeros((2, 9), FLOAT)}, 2),
        # Something to say, or to run alone.
        ([X], {"x": np.zeros((4, 3), np.float64)}, 0),
        ([X], {"x": np.zeros((4, 2), FLOAT)}, 0),
        ([X], {"x": np.zeros((4, 3, 1), FLOAT)}, 0),
        ([X], {"y": np.zeros((4, 3), FLOAT)}, 0),
        ([X], {}, 0),
        ([X], {"x": np.zeros((0, 3), FLOAT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(5, INT)}, 0),
        ([X, TWO], {"x": np.zeros((0, 3), FLOAT), "n": np.zeros(5, INT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(0, INT)}, 0),
        ([TensorSpec("x", FLOAT, None)], {"x": np.zeros((), FLOAT)}, 0),
    ],
)
def test_rows_are_counted_only_where_nothing_is_left_to_say(
    specs: list[TensorSpec], inputs: Tensors, rows: int
) -> None:
    assert count_plain_rows(signature(*specs), inputs) == rows
