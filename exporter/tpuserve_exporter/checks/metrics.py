"""Metrics of --expect, added up batch by batch in float64. None of them keeps outputs, except AUC and functions.

Each takes labels and one output of the same rows. `add` raises SamplesUnfit for labels that do not fit the output.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from tpuserve_exporter.checks.class_labels import ClassLabels, fit_labels
from tpuserve_exporter.errors import ExportError, SamplesUnfit
from tpuserve_exporter.models.builder import builder_failure, find_builder
from tpuserve_exporter.options.expectation import Expectation
from tpuserve_exporter.terms.signature import Array, TensorSpec

# The most scores to compare at once. A batch of a language model's scores has more.
_PIECE: Final = 2**22


class Metric(Protocol):
    """One metric over all rows."""

    @property
    def takes(self) -> str:
        """The output that the metric takes, for messages."""
        ...

    @property
    def note(self) -> str:
        """A choice that the outputs led to, or an empty string."""
        ...

    def fits(self, spec: TensorSpec) -> bool:
        """Return whether the output may be the one to compare."""
        ...

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        """Return the shapes that labels may have for this output, the likeliest first, for files without shapes."""
        ...

    def add(self, labels: Array, output: Array) -> None: ...

    def value(self) -> float:
        """Return the metric, NaN if an output is NaN. Raises SamplesUnfit if no label counts."""
        ...


def make_metric(expectation: Expectation, names: Sequence[str], ignored: int) -> Metric:
    """Return the metric that starts at no rows. `names` are class names, for labels that are strings.

    Raises BuilderFailed if a function cannot be imported.
    """
    if expectation.is_function:
        return _Function(expectation.metric)
    if expectation.metric == "auc":
        return _Auc(ClassLabels(names, ignored))
    if expectation.metric == "perplexity":
        return _Perplexity(ClassLabels(names, ignored))
    if expectation.metric in ("mae", "rmse"):
        return _Errors(squared=expectation.metric == "rmse")
    return _TopClasses(ClassLabels(names, ignored), expectation.top or 1)


class _TopClasses:
    """Share of labels among the `top` largest scores (top-K), or equal to a class output (accuracy).

    This is tf.keras.metrics.SparseTopKCategoricalAccuracy, and SparseCategoricalAccuracy for 1. Equal scores rank by
    class number, as in argmax, so that a model with constant scores is not right everywhere. A single score is of class
    1 above 0.5, or above 0 if any is outside 0 to 1, which only logits are.
    """

    takes = "scores of classes, [rows, classes] or [rows]"

    def __init__(self, classes: ClassLabels, top: int) -> None:
        self._classes = classes
        self._top = top
        self._counted = 0
        self._right = {"": 0, "0.5": 0, "0": 0}
        self._has_logits = self._is_binary = self._has_nan = False

    @property
    def note(self) -> str:
        if not self._is_binary:
            return ""
        return "class 1 above 0, because the scores are logits" if self._has_logits else "class 1 above 0.5"

    def fits(self, spec: TensorSpec) -> bool:
        return _is_float(spec) and (spec.shape is None or len(spec.shape) > 0)

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        shape = spec.shape or (None,)
        return (shape[:-1] if len(shape) > 1 else shape, shape)

    def add(self, labels: Array, output: Array) -> None:
        if output.dtype.kind in "iubSUO":
            self._add_classes(labels, output)
        elif output.ndim == 1 or output.shape[-1] == 1:
            self._add_binary(labels, _widen(output).reshape(len(output), -1))
        else:
            numbers, counts = self._classes.read(labels, output.shape[:-1], output.shape[-1])
            if output.shape[-1] <= self._top:
                raise SamplesUnfit(
                    f"top-{self._top} needs more than {self._top} classes: the output has {output.shape[-1]}"
                )
            for piece, scores in _pieces(numbers, counts, output):
                self._add_scores(piece, scores)

    def _add_scores(self, numbers: Array, scores: Array) -> None:
        """Add labels [n] and scores [n, classes]."""
        own = np.take_along_axis(scores, numbers[:, np.newaxis], 1)
        earlier = np.arange(scores.shape[1]) < numbers[:, np.newaxis]
        rank = ((scores > own) | ((scores == own) & earlier)).sum(1)
        self._right[""] += int((rank < self._top).sum())
        self._counted += len(numbers)
        self._has_nan |= bool(np.isnan(scores).any())

    def _add_binary(self, labels: Array, scores: Array) -> None:
        numbers, counts = self._classes.read(labels, scores.shape, 2)
        found, wanted = scores[counts], numbers[counts] == 1
        for threshold in ("0.5", "0"):
            self._right[threshold] += int(((found > float(threshold)) == wanted).sum())
        self._is_binary = True
        self._has_logits |= bool(((found < 0) | (found > 1)).any())
        self._counted += len(found)
        self._has_nan |= bool(np.isnan(found).any())

    def _add_classes(self, labels: Array, output: Array) -> None:
        if self._top > 1:
            raise SamplesUnfit(f"top-{self._top} needs scores of classes, but the output is {output.dtype}")
        if output.dtype.kind in "SUO" and labels.dtype.kind in "SUO":
            equal = fit_labels(labels, output.shape).astype(np.bytes_) == output.astype(np.bytes_)
        else:
            numbers, counts = self._classes.read(labels, output.shape, np.iinfo(np.int64).max)
            equal = (numbers == output)[counts]
        self._right[""] += int(equal.sum())
        self._counted += equal.size

    def value(self) -> float:
        right = self._right[("0" if self._has_logits else "0.5") if self._is_binary else ""]
        return math.nan if self._has_nan else _share(right, self._counted)


class _Auc:
    """Area under the ROC curve of two classes: the share of pairs in which the row of class 1 has the larger score.

    Equal scores count half. By the sum of ranks of Mann and Whitney (Hanley and McNeil 1982, Radiology 143:29-36), as
    sklearn.metrics.roc_auc_score. Two columns count as their difference, which orders rows as the probability of class
    1 does, for logits too. Keeps one number a row.
    """

    takes = "scores of two classes, [rows], [rows, 1] or [rows, 2]"
    note = ""

    def __init__(self, classes: ClassLabels) -> None:
        self._classes = classes
        self._scores: list[Array] = []
        self._positive: list[Array] = []

    def fits(self, spec: TensorSpec) -> bool:
        shape = spec.shape
        return _is_float(spec) and (shape is None or len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, 2, None)))

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        return ((None,), spec.shape or (None,))

    def add(self, labels: Array, output: Array) -> None:
        if output.ndim > 2 or (output.ndim == 2 and output.shape[1] not in (1, 2)):
            raise SamplesUnfit(f"auc needs {self.takes}, but the output has shape {list(output.shape)}")
        scores = _widen(output)
        if output.ndim == 2:
            # Rows of infinite logits have no difference, and make the result NaN.
            with np.errstate(invalid="ignore"):
                scores = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
            labels = labels if output.shape[1] == 2 else fit_labels(labels, scores.shape)
        numbers, counts = self._classes.read(labels, scores.shape, 2)
        self._scores.append(scores[counts])
        self._positive.append(numbers[counts] == 1)

    def value(self) -> float:
        scores, positive = np.concatenate(self._scores), np.concatenate(self._positive)
        ones = int(positive.sum())
        zeros = len(positive) - ones
        if not ones or not zeros:
            raise SamplesUnfit("auc needs labels of both classes, 0 and 1")
        if np.isnan(scores).any():
            return math.nan
        _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
        mean_ranks = np.cumsum(counts) - (counts - 1) / 2
        return float((mean_ranks[places][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


class _Errors:
    """Mean absolute error (MAE), or root of the mean squared error (RMSE), over all numbers of an output.

    These are mean_absolute_error and root_mean_squared_error of sklearn.metrics for outputs of one number a row.
    """

    takes = "numbers in the shape of the labels"
    note = ""

    def __init__(self, *, squared: bool) -> None:
        self._squared = squared
        self._sum, self._counted = 0.0, 0

    def fits(self, spec: TensorSpec) -> bool:
        return _is_float(spec)

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        return (spec.shape or (None,),)

    def add(self, labels: Array, output: Array) -> None:
        if labels.dtype.kind not in "iufb" or output.dtype.kind in "SUOc":
            raise SamplesUnfit(f"errors need numbers, but labels have {labels.dtype} and the output {output.dtype}")
        wrong = _widen(output) - fit_labels(_widen(labels), output.shape)
        self._sum += float(np.square(wrong).sum() if self._squared else np.abs(wrong).sum())
        self._counted += wrong.size

    def value(self) -> float:
        mean = _share(self._sum, self._counted)
        return math.sqrt(mean) if self._squared else mean


class _Perplexity:
    """Perplexity in base e: exp of the mean of -ln p(label) over all labels that count.

    This is exp of torch.nn.functional.cross_entropy with `ignore_index`. The scores are logits, or log-probabilities,
    which log_softmax does not change. Labels are the tokens that the scores at their place predict, already shifted.
    """

    takes = "logits or log-probabilities of tokens, [rows, length, vocabulary]"

    def __init__(self, classes: ClassLabels) -> None:
        self._classes = classes
        self._sum, self._counted = 0.0, 0

    @property
    def note(self) -> str:
        return f"{self._counted:,} labels"

    def fits(self, spec: TensorSpec) -> bool:
        return _is_float(spec) and (spec.shape is None or len(spec.shape) == 3)

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        return ((spec.shape or (None, None, None))[:-1],)

    def add(self, labels: Array, output: Array) -> None:
        if output.ndim < 2 or output.dtype.kind in "iubSUOc":
            raise SamplesUnfit(f"perplexity needs {self.takes}, but the output is {output.dtype}{list(output.shape)}")
        numbers, counts = self._classes.read(labels, output.shape[:-1], output.shape[-1])
        for piece, scores in _pieces(numbers, counts, output):
            self._refuse_probabilities(scores)
            largest = scores.max(1, keepdims=True)
            with np.errstate(invalid="ignore"):
                total = np.log(np.exp(scores - largest).sum(1)) + largest[:, 0]
                self._sum += float((total - np.take_along_axis(scores, piece[:, np.newaxis], 1)[:, 0]).sum())
            self._counted += len(piece)

    def _refuse_probabilities(self, scores: Array) -> None:
        """Raise SamplesUnfit for scores that are probabilities, whose softmax is almost even."""
        if scores.size and (scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=1e-3):
            raise SamplesUnfit(f"the output is probabilities, but perplexity needs {self.takes}")

    def value(self) -> float:
        mean = _share(self._sum, self._counted)
        return math.exp(mean) if mean < math.log(np.finfo(np.float64).max) else mean if math.isnan(mean) else math.inf


class _Function:
    """A user's function of (labels, output) of all rows, such as those of sklearn.metrics. Keeps both in memory."""

    takes = "one output of all rows"
    note = ""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Callable[..., object] = find_builder(name, "--expect")
        self._labels: list[Array] = []
        self._outputs: list[Array] = []

    def fits(self, spec: TensorSpec) -> bool:
        return True

    def label_shapes(self, spec: TensorSpec) -> Sequence[tuple[int | None, ...]]:
        return tuple(dict.fromkeys(((None,), (spec.shape or (None,))[:-1] or (None,), spec.shape or (None,))))

    def add(self, labels: Array, output: Array) -> None:
        self._labels.append(labels)
        self._outputs.append(output)

    def value(self) -> float:
        try:
            labels, outputs = np.concatenate(self._labels), np.concatenate(self._outputs)
        except ValueError as error:
            raise SamplesUnfit(
                f"{self._name} needs one shape of labels and outputs in all rows: {error}. Pad the file's rows alike"
            ) from error
        try:
            return float(self._function(labels, outputs))  # type: ignore[arg-type]  # a user's function
        except ExportError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise builder_failure(self._name, error) from error


def _is_float(spec: TensorSpec) -> bool:
    return "float" in spec.dtype or spec.dtype == "half"


def _widen(value: Array) -> Array:
    """Return float64, also of bfloat16, which numpy does not compute with."""
    return value.astype(np.float64)


def _pieces(numbers: Array, counts: Array, scores: Array) -> Iterator[tuple[Array, Array]]:
    """Yield counted labels [n] and their scores [n, classes] in float64, a few million scores at a time."""
    classes = scores.shape[-1]
    flat, labels, kept = scores.reshape(-1, classes), numbers.reshape(-1), counts.reshape(-1)
    step = max(_PIECE // classes, 1)
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        if kept[part].any():
            yield labels[part][kept[part]], _widen(flat[part][kept[part]])


def _share(total: float, counted: int) -> float:
    if not counted:
        raise SamplesUnfit("no label counts, because all of them are the one of --ignore-label")
    return total / counted
