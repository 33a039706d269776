"""Tests that the exporter finds models that padding changes and accepts models that mask it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.version_checks import check_padding
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit
from tpuserve_exporter.options.export_options import PadValue, SequenceOptions
from tpuserve_exporter.terms.samples import check_lengths
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

pytestmark = [pytest.mark.xdist_group(__name__)]

TIGHT = Tolerance(1e-6, 1e-6)
IDS = TensorSpec("int32", (None, None))
SIGNATURE = Signature("serving_default", {"ids": IDS}, {"y": TensorSpec("float64", (None, None))})
SAMPLES = {"ids": np.random.default_rng(0).integers(1, 9, (6, 5)).astype(np.int32)}


class _Function:
    """A model that is one numpy function and records the lengths that it runs at."""

    def __init__(self, function: Callable[[Array], Any]) -> None:
        self._function = function
        self.lengths: list[int] = []

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        self.lengths.append(inputs["ids"].shape[1])
        return {"y": self._function(inputs["ids"])}


def check(function: Callable[[Array], Any], **pad_values: PadValue) -> list[int]:
    model = _Function(function)
    assert check_padding(SIGNATURE, SAMPLES, SequenceOptions((4, 16), pad_values), model, TIGHT) == 2
    return model.lengths


@pytest.mark.parametrize(
    "function",
    [
        lambda ids: ids * 2.0,
        lambda ids: np.cumsum(ids, axis=1) * 1.0,
        lambda ids: ids.sum(axis=1, keepdims=True) * np.ones(7),
        lambda ids: ids / np.maximum((ids != 0).sum(axis=1, keepdims=True), 1),
        lambda ids: np.where(ids > 0, ids / ids.sum(axis=1, keepdims=True), np.nan),
    ],
    ids=["each by itself", "only what comes before", "zeros add nothing", "masked", "nan in the padding"],
)
def test_padding_that_is_masked_passes(tensorflow: None, function: Callable[[Array], Any]) -> None:
    # Rows are cut to lengths below the bucket, and are never extended.
    assert check(function) == [3, 4, 5, 16]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ids: ids - ids.mean(axis=1, keepdims=True), "rows padded to 4: output 'y' differs by up to"),
        (lambda ids: ids.mean(axis=1, keepdims=True) * np.ones(3), "output 'y' differs"),
        (lambda ids: ids[:, ::-1] * 1.0, "output 'y' differs"),
        (lambda ids: np.repeat(ids, 2, axis=1) * 1.0, r"output 'y' has shape \[4, 8\] instead of \[4, 6\]"),
        (lambda ids: ids[:, -1:] * 1.0, "output 'y' differs"),
    ],
    ids=["mean", "pooled mean", "backwards", "twice as long", "the last"],
)
def test_padding_that_is_not_masked_is_found(tensorflow: None, function: Callable[[Array], Any], message: str) -> None:
    with pytest.raises(ParityFailed, match=message):
        check(function)


def test_the_padding_value_is_what_the_model_masks(tensorflow: None) -> None:
    def mask_seven(ids: Array) -> Any:  # noqa: ANN401 - numpy's
        return np.where(ids == 7, 0, ids).sum(axis=1, keepdims=True) + (ids == 0).sum(axis=1, keepdims=True) * 1.0

    check(mask_seven, ids=7)
    with pytest.raises(ParityFailed):
        check(mask_seven)


@pytest.mark.parametrize("value", ["text", 0.5, 2**40])
def test_a_padding_value_must_be_of_the_inputs_dtype(tensorflow: None, value: PadValue) -> None:
    with pytest.raises(SamplesUnfit, match=r"cannot pad input 'ids' \(int32\[\?, \?\]\) with"):
        check(lambda ids: ids, ids=value)


def test_strings_are_padded_with_strings(tensorflow: None) -> None:
    words = Signature("words", {"ids": TensorSpec("string", (None, None))}, {"y": TensorSpec("string", (None, None))})
    samples = {"ids": np.array([[b"a", b"b", b"c"]] * 2, object)}
    seen: list[bytes] = []

    def remember(ids: Array) -> Array:
        seen.extend(ids[0].tolist())
        return ids

    model = _Function(remember)
    check_padding(words, samples, SequenceOptions((4,), {"ids": "-"}), model, TIGHT)
    check_padding(words, samples, SequenceOptions((4,)), model, TIGHT)
    assert seen == [b"a", b"b", b"c", b"a", b"b", b"c", b"-", b"a", b"b", b"c", b"a", b"b", b"c", b""]


def test_samples_longer_than_the_last_bucket_are_refused() -> None:
    check_lengths(SIGNATURE, SAMPLES, SequenceOptions(()), "--check")
    check_lengths(SIGNATURE, SAMPLES, SequenceOptions((5,)), "--check")
    with pytest.raises(
        SamplesUnfit, match=r"--check: input 'ids' of serving_default is 5 long, but the largest .* is 4"
    ):
        check_lengths(SIGNATURE, SAMPLES, SequenceOptions((2, 4)), "--check")
