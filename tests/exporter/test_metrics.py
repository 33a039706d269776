"""Tests for the metrics of --expect, against scikit-learn and SciPy, in batches of several sizes."""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
import sklearn.metrics
from numpy.typing import ArrayLike
from scipy.special import expit, log_softmax, softmax  # type: ignore[import-untyped]  # it has no annotations

from tpuserve_exporter.checks.metrics import make_metric
from tpuserve_exporter.errors import BuilderFailed, OptionConflict, SamplesUnfit
from tpuserve_exporter.options.expectation import Expectation
from tpuserve_exporter.terms.signature import Array

RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.normal(0, 2, (40, 7)).astype(np.float32)
CLASSES = RANDOM.integers(0, 7, 40)
SCORES = np.round(RANDOM.normal(0, 1, 60), 1)  # with ties
SIDES = (RANDOM.random(60) < expit(SCORES)).astype(np.int64)


def measure(
    text: str, labels: ArrayLike, output: ArrayLike, *, rows: int = 9, names: Sequence[str] = (), ignored: int = -100
) -> float:
    """Return the metric over batches of `rows` rows."""
    metric = make_metric(Expectation.parse(f"{text}>=0"), names, ignored)
    labels, output = np.asarray(labels), np.asarray(output)
    for start in range(0, len(output), rows):
        metric.add(labels[start : start + rows], output[start : start + rows])
    return metric.value()


@pytest.mark.parametrize("rows", [1, 9, 100])
@pytest.mark.parametrize("scores", [LOGITS, softmax(LOGITS, axis=-1), LOGITS.astype(ml_dtypes.bfloat16)])
def test_accuracy_and_top_k_are_the_same_for_logits_and_probabilities(scores: Array, rows: int) -> None:
    wide = scores.astype(np.float64)
    assert measure("accuracy", CLASSES, scores, rows=rows) == sklearn.metrics.accuracy_score(CLASSES, wide.argmax(-1))
    for top in (2, 5):
        expected = sklearn.metrics.top_k_accuracy_score(CLASSES, wide, k=top)
        assert measure(f"top-{top}", CLASSES, scores, rows=rows) == pytest.approx(expected)


def test_labels_may_be_names_columns_one_hot_rows_or_whole_floats() -> None:
    names = tuple("abcdefg")
    expected = measure("accuracy", CLASSES, LOGITS)
    for labels in (
        np.array(names)[CLASSES],
        np.array([names[one].encode() for one in CLASSES], object),
        CLASSES[:, np.newaxis],
        np.eye(7)[CLASSES],
        CLASSES.astype(np.float64),
    ):
        assert measure("accuracy", labels, LOGITS, names=names) == expected


def test_a_constant_model_is_not_right_everywhere() -> None:
    constant = np.zeros((700, 7))
    labels = np.arange(700) % 7
    assert measure("accuracy", labels, constant) == pytest.approx(1 / 7)
    assert measure("top-3", labels, constant) == pytest.approx(3 / 7)
    assert measure("auc", labels % 2, constant[:, 0]) == 0.5


def test_one_score_of_two_classes_is_a_probability_or_a_logit() -> None:
    expected = sklearn.metrics.accuracy_score(SIDES, SCORES > 0)
    assert measure("accuracy", SIDES, SCORES) == expected
    assert measure("accuracy", SIDES, SCORES[:, np.newaxis]) == expected
    assert measure("accuracy", SIDES, expit(SCORES)) == expected
    assert measure("accuracy", SIDES.astype(bool), expit(SCORES)[:, np.newaxis]) == expected


def test_class_outputs_and_places_of_sequences_count_too() -> None:
    assert measure("accuracy", CLASSES, LOGITS.argmax(-1)) == measure("accuracy", CLASSES, LOGITS)
    words = np.array([b"cat", b"dog"], object)
    assert measure("accuracy", np.array(["cat", "cat"]), words) == 0.5
    labels = CLASSES.reshape(8, 5).copy()
    labels[0, :4] = -100
    expected = sklearn.metrics.accuracy_score(labels.ravel()[4:], LOGITS.argmax(-1)[4:])
    assert measure("accuracy", labels, LOGITS.reshape(8, 5, 7), rows=3) == expected


@pytest.mark.parametrize("columns", [SCORES, SCORES[:, np.newaxis], np.stack([-SCORES, SCORES], 1) / 2])
def test_auc_counts_ties_half(columns: Array) -> None:
    assert measure("auc", SIDES, columns) == pytest.approx(sklearn.metrics.roc_auc_score(SIDES, SCORES), abs=1e-12)
    both = softmax(np.stack([0 * SCORES, SCORES], 1), axis=1)
    assert measure("auc", SIDES, both) == pytest.approx(sklearn.metrics.roc_auc_score(SIDES, both[:, 1]), abs=1e-12)


def test_errors_take_numbers_in_the_shape_of_the_output() -> None:
    labels, output = RANDOM.normal(0, 3, (20, 2)), RANDOM.normal(0, 3, (20, 2)).astype(np.float32)
    assert measure("mae", labels, output) == pytest.approx(sklearn.metrics.mean_absolute_error(labels, output))
    expected = math.sqrt(sklearn.metrics.mean_squared_error(labels, output))
    assert measure("rmse", labels, output) == pytest.approx(expected)
    # A column minus a row would be a matrix.
    one = output[:, :1]
    assert measure("mae", labels[:, 0], one) == pytest.approx(np.abs(labels[:, 0] - one[:, 0]).mean())


@pytest.mark.parametrize("scores", [LOGITS * 30, log_softmax(LOGITS * 30, axis=-1)])
def test_perplexity_is_of_labels_that_count(scores: Array) -> None:
    labels = CLASSES.reshape(8, 5).copy()
    labels[2:4, 3:] = 6
    counted = labels.ravel() != 6
    expected = np.exp(-log_softmax(LOGITS.astype(float) * 30, axis=-1)[np.arange(40), labels.ravel()][counted].mean())
    assert measure("perplexity", labels, scores.reshape(8, 5, 7), rows=3, ignored=6) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("metric", ["accuracy", "top-2", "mae", "rmse", "perplexity"])
def test_nan_makes_the_metric_nan(metric: str) -> None:
    output = LOGITS.copy()
    output[3, 2] = math.nan
    shaped = output[:, np.newaxis] if metric == "perplexity" else output
    labels = output * 0 if metric in ("mae", "rmse") else CLASSES
    assert math.isnan(measure(metric, labels, shaped))
    assert math.isnan(measure("auc", SIDES, np.where(np.arange(60) == 7, np.nan, SCORES)))
    assert not Expectation.parse("mae<=3").is_met(math.nan)
    assert not Expectation.parse("mae>=3").is_met(math.inf)


@pytest.mark.parametrize(
    ("text", "labels", "output", "message"),
    [
        ("accuracy", [0, 1, 7], LOGITS[:3], "label 7 in row 2 is no class: the output has classes 0 to 6"),
        ("accuracy", [-1, 1, 2], LOGITS[:3], "label -1 in row 0 is no class"),
        ("accuracy", ["cat"], LOGITS[:1], "label 'cat' is a name, but the classes have no names. Use --labels FILE"),
        ("accuracy", [0.5], LOGITS[:1], "labels of classes need whole numbers or names, but have float64"),
        ("accuracy", LOGITS[:2], LOGITS[:2], "labels have the shape of the scores, but are not one-hot"),
        ("accuracy", CLASSES[:4], LOGITS[:3], "labels have shape [4], but the output needs [3]"),
        ("accuracy", [-100, -100], LOGITS[:2], "no label counts, because all of them are the one of --ignore-label"),
        ("top-7", CLASSES, LOGITS, "top-7 needs more than 7 classes: the output has 7"),
        ("top-2", CLASSES, LOGITS.argmax(-1), "top-2 needs scores of classes, but the output is int64"),
        ("auc", SIDES, LOGITS, "auc needs scores of two classes, [rows], [rows, 1] or [rows, 2], but the output has"),
        ("auc", SIDES * 0, SCORES, "auc needs labels of both classes, 0 and 1"),
        ("mae", CLASSES, LOGITS, "labels have shape [9], but the output needs [9, 7]"),
        ("mae", np.array(["a"]), LOGITS[:1, :1], "errors need numbers, but labels have <U1 and the output float32"),
        ("perplexity", [[0]], softmax(LOGITS[:1, np.newaxis], axis=-1), "the output is probabilities, but perplexity"),
    ],
)
def test_labels_that_do_not_fit_are_explained(text: str, labels: ArrayLike, output: ArrayLike, message: str) -> None:
    with pytest.raises(SamplesUnfit) as refused:
        measure(text, labels, output)
    assert message in str(refused.value)


def test_an_unknown_name_suggests_a_class() -> None:
    with pytest.raises(SamplesUnfit, match=r"label .Cat. is no class of the model\. Did you mean .cat."):
        measure("accuracy", ["Cat"], LOGITS[:1, :2], names=("cat", "dog"))


def test_functions_get_all_labels_and_outputs() -> None:
    assert measure("sklearn.metrics:roc_auc_score", SIDES, SCORES) == pytest.approx(measure("auc", SIDES, SCORES))
    with pytest.raises(BuilderFailed, match=r"sklearn\.metrics:roc_auc_score failed: ValueError"):
        measure("sklearn.metrics:roc_auc_score", CLASSES, SCORES)
    with pytest.raises(BuilderFailed, match=r"sklearn\.metrics has no function 'roc_auc'"):
        measure("sklearn.metrics:roc_auc", SIDES, SCORES)
    metric = make_metric(Expectation.parse("numpy:size>=0"), (), -100)
    for length in (2, 3):
        metric.add(np.zeros(4), np.zeros((4, length)))
    with pytest.raises(SamplesUnfit, match="needs one shape of labels and outputs in all rows"):
        metric.value()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy>=0.97", Expectation("accuracy", ">=", 0.97)),
        (" Top-5 ( scores ) > .5", Expectation("top-5", ">", 0.5, "scores")),
        ("mae(photo/price, y2)<=3", Expectation("mae", "<=", 3.0, "photo/price", "y2")),
        ("my.metrics:F1<1e-3", Expectation("my.metrics:F1", "<", 1e-3)),
        ("my.metrics:percent>=97", Expectation("my.metrics:percent", ">=", 97.0)),
    ],
)
def test_expectations_are_read(text: str, expected: Expectation) -> None:
    assert Expectation.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accuracy", "has no metric, comparison"),
        ("accuracy=0.9", "has no metric, comparison"),
        ("accuracy>=high", "has no metric, comparison"),
        ("accuracy>=nan", "has no metric, comparison"),
        ("accurate>=0.9", "--expect has no metric 'accurate'. Did you mean accuracy?"),
        ("top-0>=0.9", "--expect has no metric 'top-0'. Did you mean top-K?"),
        ("accuracy(scores)>=97", "'accuracy(scores)>=97': accuracy is a number from 0 to 1. Use 0.97"),
        ("top-5>101", "--expect 'top-5>101': top-5 is a number from 0 to 1"),
        ("auc>=-0.1", "--expect 'auc>=-0.1': auc is a number from 0 to 1"),
    ],
)
def test_expectations_that_cannot_be_read_are_explained(text: str, message: str) -> None:
    with pytest.raises(OptionConflict) as refused:
        Expectation.parse(text)
    assert message in str(refused.value)
