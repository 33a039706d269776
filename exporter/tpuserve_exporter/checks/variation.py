"""Checks what an answer varies with: a repetition, other requests, or the other rows of the batch."""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare, is_float
from tpuserve_exporter.terms.samples import distinct_rows, take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors

# Enough rows to differ from each other.
_ROWS = 4


class Change(StrEnum):
    """The case in which an answer changes."""

    NEVER = ""
    EACH_TIME = "answers the same request differently when it is repeated"
    AFTER_OTHERS = "answers the same request differently after another request"


def find_change(signature: Signature, samples: Tensors, model: Runnable, tolerance: Tolerance) -> tuple[Change, str]:
    """Send `model` the same request twice, then another one, then the first again. Return when and how answers change.

    If the model refuses the other request, only the first two answers count.
    """
    inputs = take_rows(samples, slice(0, _ROWS)) if signature.is_batchable else samples
    first = model.run(signature, inputs)
    if difference := compare(first, model.run(signature, inputs), tolerance).beyond:
        return Change.EACH_TIME, difference
    if not _takes(model, signature, _reverse(inputs, signature)):
        return Change.NEVER, ""
    difference = compare(first, model.run(signature, inputs), tolerance).beyond
    return (Change.AFTER_OTHERS if difference else Change.NEVER), difference


def _reverse(inputs: Tensors, signature: Signature) -> Tensors:
    """Return the same rows in reverse order, or reversed values if the inputs have no rows."""
    if signature.is_batchable:
        return {name: value[::-1] for name, value in inputs.items()}
    return {name: np.flip(value) for name, value in inputs.items()}


def _takes(model: Runnable, signature: Signature, inputs: Tensors) -> bool:
    import tensorflow as tf

    try:
        model.run(signature, inputs)
    except tf.errors.OpError:
        return False
    return True


# Enough rows to have neighbours on both sides. The trials check every row.
_NEIGHBOURS = "its neighbors"
_OTHERS = "the other rows"
_OTHER_ROWS = "the outputs and the inputs have different numbers of rows"


class Finding(NamedTuple):
    """The result of the trials. `dependence` names what a row depends on. `checked` is False if trials show nothing."""

    dependence: str = ""
    checked: bool = True

    @property
    def independent(self) -> bool:
        return self.checked and not self.dependence


class _Trial(NamedTuple):
    """A batch. The results of the rows `at` should equal those of the rows `baseline` of the first batch."""

    what: str
    inputs: Tensors
    at: Array
    baseline: Array


def find_dependence(signature: Signature, samples: Tensors, model: Runnable, tolerance: Tolerance) -> Finding:
    """Return whether a row's result depends on anything except the row.

    The trials compare each row with itself alone, in reverse order, and with neighbours of NaN (floats only). NaN shows
    influence that the tolerance would hide. If all rows get the same answer, only a NaN trial can show independence.
    Without one, the rows count as not checked.
    """
    rows = _choose_rows(samples)
    baseline = model.run(signature, rows)
    if _has_other_rows(baseline, _ROWS):
        return Finding(f"the batch: {_OTHER_ROWS}")
    telling = len(distinct_rows(baseline)) > 1
    for trial in _trials(rows):
        expected, actual = take_rows(baseline, trial.baseline), _run(model, signature, trial)
        if actual is None:
            continue
        if _has_other_rows(actual, len(next(iter(trial.inputs.values())))):
            return Finding(f"{trial.what}: {_OTHER_ROWS}")
        difference = compare(expected, take_rows(actual, trial.at), tolerance)
        if difference.beyond:
            return Finding(f"{trial.what}: {difference.beyond}")
        telling = telling or trial.what == _NEIGHBOURS
    return Finding(checked=telling)


def find_dependence_in_fixed(
    signature: Signature, samples: Tensors, rows: int, model: Runnable, tolerance: Tolerance
) -> Finding:
    """Find out whether a row depends on the other rows of a batch that always has `rows` rows.

    The trials replace all rows except one by another row, and then by NaN (floats only). The rows count as not checked
    if all get the same answer, or if the outputs have no such rows.
    """
    baseline = model.run(signature, samples)
    if _has_other_rows(baseline, rows):
        return Finding(checked=False)
    telling = len(distinct_rows(baseline)) > 1
    for kept in sorted({0, rows // 2, rows - 1}):
        at = np.array([kept])
        for trial in _trials_in_fixed(samples, kept, rows):
            actual = _run(model, signature, trial)
            if actual is None:
                continue
            difference = compare(take_rows(baseline, at), take_rows(actual, at), tolerance)
            if difference.beyond:
                return Finding(f"{trial.what}: {difference.beyond}")
    return Finding(checked=telling)


def count_fixed_rows(signature: Signature, samples: Tensors) -> int:
    """Return the fixed batch size of `signature`, or 0 if its inputs do not all begin with the same size."""
    first = {spec.shape[0] if spec.shape else None for spec in signature.inputs.values()}
    if signature.is_batchable or len(first) != 1 or None in first:
        return 0
    return len(next(iter(samples.values())))


def _trials_in_fixed(samples: Tensors, kept: int, rows: int) -> Iterator[_Trial]:
    order = np.full(rows, (kept + 1) % rows)
    order[kept] = kept
    at = np.array([kept])
    yield _Trial(_OTHERS, take_rows(samples, order), at, at)
    if any(is_float(value) for value in samples.values()):
        yield _Trial(_NEIGHBOURS, _spoil_others(samples, kept), at, at)


def _has_other_rows(outputs: Tensors, rows: int) -> bool:
    return any(value.shape[:1] != (rows,) for value in outputs.values())


def _choose_rows(samples: Tensors) -> Tensors:
    """Return different rows, if the samples have enough."""
    distinct = np.array(distinct_rows(samples))
    return take_rows(samples, distinct[np.arange(_ROWS) % len(distinct)])


def _trials(rows: Tensors) -> Iterator[_Trial]:
    order = np.arange(_ROWS)
    for index in order:
        yield _Trial("the batch size", take_rows(rows, order[index : index + 1]), np.array([0]), np.array([index]))
    yield _Trial("its position in the batch", take_rows(rows, order[::-1]), order, order[::-1])
    if any(is_float(value) for value in rows.values()):
        for index in order:
            yield _Trial(_NEIGHBOURS, _spoil_others(rows, int(index)), np.array([index]), np.array([index]))


def _spoil_others(rows: Tensors, kept: int) -> Tensors:
    return {name: _spoil(value, kept) if is_float(value) else value for name, value in rows.items()}


def _spoil(value: Array, kept: int) -> Array:
    spoiled = np.full_like(value, np.nan)
    spoiled[kept] = value[kept]
    return spoiled


def _run(model: Runnable, signature: Signature, trial: _Trial) -> Tensors | None:
    """Run a trial, or return None if the model rejects NaN. A rejection shows nothing about its rows."""
    import tensorflow as tf

    try:
        return model.run(signature, trial.inputs)
    except tf.errors.InvalidArgumentError:
        if trial.what == _NEIGHBOURS:
            return None
        raise
