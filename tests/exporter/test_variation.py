"""Tests that the exporter finds models that mix rows, even slightly, and models whose answer to one request changes."""

from collections.abc import Callable

import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.variation import (
    Change,
    count_fixed_rows,
    find_change,
    find_dependence,
    find_dependence_in_fixed,
)
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

pytestmark = [pytest.mark.xdist_group(__name__)]

SPEC = TensorSpec("float32", (None, 3))
SIGNATURE = Signature("serving_default", {"x": SPEC}, {"y": SPEC})
SAMPLES = {"x": np.random.default_rng(0).random((6, 3)).astype(np.float32)}
WIDE = Tolerance(2e-2, 2e-2)


class _Function:
    """A model that is one numpy function."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self._function = function

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        return {"y": self._function(inputs["x"])}


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: x * 2, ""),
        (lambda x: np.nan_to_num(x) * 2, ""),
        (lambda x: x - x.mean(axis=0), "the batch size"),
        (lambda x: x * len(x), "the batch size"),
        (lambda x: x + np.arange(len(x))[:, None], "the batch size"),
        (lambda x: x + (np.arange(len(x))[:, None] > 1) * (len(x) > 1), "the batch size"),
        (lambda x: x[::-1].copy() if len(x) > 1 else x, "the batch size"),
        (lambda x: x + 1e-9 * x.sum(axis=0), "its neighbors"),
        (lambda x: x[:1], "the batch"),
        (lambda x: x[~np.isnan(x).any(axis=1)], "its neighbors"),
    ],
    ids=[
        "none",
        "none, nan-proof",
        "mean",
        "count",
        "position",
        "late rows",
        "reversed",
        "faint",
        "fewer rows",
        "rows that it keeps",
    ],
)
def test_dependence_is_found(tensorflow: None, function: Callable[[Array], Array], found: str) -> None:
    with np.errstate(invalid="ignore"):
        finding = find_dependence(SIGNATURE, SAMPLES, _Function(function), WIDE)
    assert finding.dependence.startswith(found)
    assert finding.independent is (found == "")


def test_a_model_that_refuses_nan_is_judged_by_the_rest(tensorflow: None) -> None:
    import tensorflow as tf

    checked = _Function(lambda x: tf.debugging.check_numerics(x, "checked").numpy())
    assert find_dependence(SIGNATURE, SAMPLES, checked, WIDE).independent
    alike = {"x": np.ones((6, 3), np.float32)}
    assert not find_dependence(SIGNATURE, alike, checked, WIDE).checked


@pytest.mark.parametrize("function", [lambda x: x - x.mean(axis=0), lambda x: x * 2])
def test_rows_that_all_get_one_answer_prove_nothing(tensorflow: None, function: Callable[[Array], Array]) -> None:
    alike = {"x": np.ones((6, 3), np.int64)}
    finding = find_dependence(SIGNATURE, alike, _Function(function), WIDE)
    assert (finding.checked, finding.independent) == (False, False)


def test_rows_that_differ_are_looked_for(tensorflow: None) -> None:
    late = {"x": np.array([[1], [1], [1], [1], [1], [5]], np.int64)}
    assert find_dependence(SIGNATURE, late, _Function(lambda x: x - x.mean(axis=0)), WIDE).dependence
    assert find_dependence(SIGNATURE, late, _Function(lambda x: x * 2), WIDE).independent


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: x * 2, ""),
        (lambda x: x - x.mean(axis=0), "the other rows"),
        (lambda x: x + 1e-9 * x.sum(axis=0), "its neighbors"),
    ],
    ids=["none", "mean", "faint"],
)
def test_dependence_in_a_fixed_batch_is_found(tensorflow: None, function: Callable[[Array], Array], found: str) -> None:
    with np.errstate(invalid="ignore"):
        finding = find_dependence_in_fixed(SIGNATURE, SAMPLES, 6, _Function(function), WIDE)
    assert finding.dependence.startswith(found)
    assert finding.independent is (found == "")


def test_outputs_without_rows_tell_nothing_of_a_fixed_batch(tensorflow: None) -> None:
    assert not find_dependence_in_fixed(SIGNATURE, SAMPLES, 6, _Function(lambda x: x.mean(axis=0)), WIDE).checked


def test_only_inputs_of_one_fixed_size_are_a_fixed_batch() -> None:
    def count(*sizes: int | None) -> int:
        inputs = {f"x{index}": TensorSpec("float32", (size, 3)) for index, size in enumerate(sizes)}
        return count_fixed_rows(Signature("serving_default", inputs, {"y": TensorSpec("float32", (6, 3))}), SAMPLES)

    assert (count(6), count(6, 6), count(6, 4), count(6, None)) == (6, 6, 0, 0)


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
def test_change_is_found(
    tensorflow: None, rows: int | None, function: Callable[[Array, list[Array]], Array], change: Change
) -> None:
    spec = TensorSpec("float32", (rows, 3))
    signature = Signature("serving_default", {"x": spec}, {"y": spec})
    found, difference = find_change(signature, SAMPLES, _Model(function), Tolerance(1e-5, 1e-4))
    assert found is change
    assert bool(difference) is (change is not Change.NEVER)
