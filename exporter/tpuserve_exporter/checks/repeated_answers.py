"""Checks that a model gives the same answer to the same request each time, after any other request."""

from enum import StrEnum

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.terms.runnable import Runnable
from tpuserve_exporter.terms.samples import take_rows
from tpuserve_exporter.terms.signature import Signature, Tensors

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
