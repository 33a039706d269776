"""Tests that the check finds models whose response to one request changes, at once or after another request."""

from collections.abc import Callable

import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.variation import Change, find_change
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.usefixtures("tensorflow")]

TOLERANCE = Tolerance(1e-5, 1e-4)
SAMPLES = {"x": np.random.default_rng(0).random((6, 3)).astype(np.float32)}


class _Model:
    """A model whose output is a function of its input and of all earlier inputs."""

    def __init__(self, function: Callable[[Array, list[Array]], Array]) -> None:
        self._function = function
        self._before: list[Array] = []

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        answer = self._function(inputs["x"], self._before)
        self._before.append(inputs["x"])
        return {"y": answer}


def _refuses_others(x: Array, before: list[Array]) -> Array:
    import tensorflow as tf

    if before and not np.array_equal(x, before[0]):
        raise tf.errors.InvalidArgumentError(None, None, "not in order")
    return x


@pytest.mark.parametrize("rows", [None, 6], ids=["free", "fixed"])
@pytest.mark.parametrize(
    ("function", "change"),
    [
        (lambda x, before: x * 2, Change.NEVER),
        (lambda x, before: x + 1e-7 * len(before), Change.NEVER),
        (lambda x, before: x + len(before), Change.EACH_TIME),
        (lambda x, before: x + np.random.default_rng().random(), Change.EACH_TIME),
        (lambda x, before: x - (before[-1] if before else x), Change.AFTER_OTHERS),
        (_refuses_others, Change.NEVER),
    ],
    ids=["none", "within the tolerance", "a counter", "noise", "memory", "picky"],
)
def test_change_is_found(rows: int | None, function: Callable[[Array, list[Array]], Array], change: Change) -> None:
    spec = TensorSpec("float32", (rows, 3))
    signature = Signature("serving_default", {"x": spec}, {"y": spec})
    found, difference = find_change(signature, SAMPLES, _Model(function), TOLERANCE)
    assert found is change
    assert bool(difference) is (change is not Change.NEVER)
