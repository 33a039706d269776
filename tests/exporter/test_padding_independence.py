"""Tests that the exporter finds models that padding changes and accepts models that mask it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.padding import check_padding
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
    source, model = _Function(function), _Function(function)
    assert check_padding(SIGNATURE, SAMPLES, SequenceOptions((4, 16), pad_values), source, model, TIGHT) == 10
    assert source.lengths == [3, 1, 3, 4, 5, 5, 15, 16]
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
    # Rows are cut or repeated to the shortest and longest lengths that servers pad to each bucket.
    assert check(function) == [3, 4, 4, 4, 4, 5, 16, 16, 16, 16]


def test_a_version_that_differs_from_its_source_at_one_length_is_found(tensorflow: None) -> None:
    def source(ids: Array) -> Any:  # noqa: ANN401 - numpy's
        return ids * (2.0 if ids.shape[1] == 16 else 1.0)

    with pytest.raises(ParityFailed, match=r"rows of length 16: output 'y' differs by up to .* Set the length to a"):
        check_padding(
            SIGNATURE, SAMPLES, SequenceOptions((4, 16)), _Function(source), _Function(lambda ids: ids * 1.0), TIGHT
        )


def test_lengths_that_the_source_refuses_are_not_compared(tensorflow: None) -> None:
    def even(ids: Array) -> Any:  # noqa: ANN401 - numpy's
        if ids.shape[1] % 2:
            raise SamplesUnfit("the length is odd")
        return ids * 1.0

    samples = {"ids": SAMPLES["ids"][:, :2]}
    model = _Function(lambda ids: ids * 1.0)
    assert check_padding(SIGNATURE, samples, SequenceOptions((4, 6)), _Function(even), model, TIGHT) == 6
    assert model.lengths == [2, 4, 4, 2, 6, 6]
    with pytest.raises(SamplesUnfit, match="serving_default fails on rows of up to 3: the length is odd"):
        check_padding(SIGNATURE, SAMPLES, SequenceOptions((4,)), _Function(even), model, TIGHT)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ids: ids - ids.mean(axis=1, keepdims=True), "rows padded to 4: output 'y' differs by up to"),
        (lambda ids: ids.mean(axis=1, keepdims=True) * np.ones(3), "output 'y' differs"),
        (lambda ids: ids[:, ::-1] * 1.0, "output 'y' differs"),
        (lambda ids: np.repeat(ids, 2, axis=1) * 1.0, r"output 'y' has shape \[2, 8\] instead of \[2, 6\]"),
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

    source, model = _Function(lambda ids: ids), _Function(remember)
    check_padding(words, samples, SequenceOptions((4,), {"ids": "-"}), source, model, TIGHT)
    assert seen[:7] == [b"a", b"b", b"c", b"a", b"b", b"c", b"-"]
    seen.clear()
    check_padding(words, samples, SequenceOptions((4,)), source, model, TIGHT)
    assert seen[:7] == [b"a", b"b", b"c", b"a", b"b", b"c", b""]


def test_samples_longer_than_the_last_bucket_are_refused() -> None:
    check_lengths(SIGNATURE, SAMPLES, SequenceOptions(()), "--check")
    check_lengths(SIGNATURE, SAMPLES, SequenceOptions((5,)), "--check")
    with pytest.raises(
        SamplesUnfit, match=r"--check: input 'ids' of serving_default is 5 long, but the largest .* is 4"
    ):
        check_lengths(SIGNATURE, SAMPLES, SequenceOptions((2, 4)), "--check")


def test_a_bucket_beyond_the_tables_of_a_model_is_refused(tensorflow: None) -> None:
    def table(ids: Array) -> Any:  # noqa: ANN401 - numpy's
        if ids.shape[1] > 8:
            raise SamplesUnfit("index 8 is out of range")
        return ids * 1.0

    def table_of_jax(ids: Array) -> Any:  # noqa: ANN401 - numpy's
        return np.where(np.arange(ids.shape[1]) < 8, ids, np.nan)

    for function, error, message in (
        (table, SamplesUnfit, "fails on rows of length 16: index 8 is out of range. Use --sequence-buckets of lengths"),
        (table_of_jax, ParityFailed, "the source returns NaN for rows of length 15, but not for shorter ones"),
    ):
        model = _Function(lambda ids: ids * 1.0)
        check_padding(SIGNATURE, SAMPLES, SequenceOptions((4, 8)), _Function(function), model, TIGHT)
        with pytest.raises(error, match=message):
            check_padding(SIGNATURE, SAMPLES, SequenceOptions((4, 16)), _Function(function), model, TIGHT)
