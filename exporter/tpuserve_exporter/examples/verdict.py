"""Judges an answer to an example."""

import difflib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.examples.prediction import Prediction
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.samples.samples import fit_array
from tpuserve_exporter.signature import Array, Tensors, TensorSpec


def judge(
    example: Example, outputs: Tensors, prediction: Prediction, labels: Sequence[str], tolerance: Tolerance
) -> str:
    """Return the reason why the answer is wrong, or an empty string if it is correct.

    Raises SamplesUnfit for an impossible expectation: a label that no class has, or a shape that no output has.
    """
    if isinstance(example.expected, str):
        return _judge_class(example, example.expected, prediction, labels)
    off = _judge_arrays(example, example.expected, outputs, tolerance)
    return f"{off}, received {prediction}" if off else ""


def _judge_class(example: Example, expected: str, prediction: Prediction, labels: Sequence[str]) -> str:
    best = prediction.ranked[0] if prediction.ranked else None
    if best is not None and math.isnan(best.score):
        return f"expected {expected}, received NaN ({prediction})"
    received = [*prediction.texts, *([best.label] if best is not None and best.label else [])]
    if expected in received:
        return ""
    if expected not in labels and expected.isdecimal() and best is not None:
        number = float(expected)  # int() refuses thousands of digits
        if number >= prediction.count:
            raise SamplesUnfit(
                f"{example} expects class {expected}, but the scores are of classes 0 to {prediction.count - 1}"
            )
        return "" if number == best.index else f"expected class {expected}, received {_received(prediction)}"
    if not received:
        raise SamplesUnfit(_no_names(example, expected, prediction, labels))
    if labels and expected not in labels and not prediction.texts:
        near = difflib.get_close_matches(expected, labels, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise SamplesUnfit(f"{example} expects {expected!r}, but --labels has no such class{hint}")
    return f"expected {expected}, received {_received(prediction)}"


def _received(prediction: Prediction) -> str:
    """Return `siamese (top 3: siamese 0.9, tabby 0.06, fox 0.01)`."""
    best = [one.label or str(one.index) for one in prediction.ranked[:1]]
    first = ", ".join(prediction.texts or best)
    return f"{first} ({prediction})" if prediction.ranked else first


def _no_names(example: Example, expected: str, prediction: Prediction, labels: Sequence[str]) -> str:
    if prediction.ranked and labels:
        return (
            f"{example} expects {expected!r}, but --labels has {len(labels)} classes and the scores have "
            f"{prediction.count}"
        )
    if prediction.ranked:
        return (
            f"{example} expects {expected!r}, but the classes have no names. Use --labels FILE, or expect a class "
            "number"
        )
    outputs = ", ".join(prediction.outputs)
    return (
        f"{example} expects {expected!r}, but no output ({outputs}) is a text or the scores of one row. Expect an "
        ".npy file"
    )


def _judge_arrays(example: Example, expected: Mapping[str, Array], outputs: Tensors, tolerance: Tolerance) -> str:
    if expected.keys() == {""} and len(outputs) == 1:
        expected = {next(iter(outputs)): expected[""]}
    if unknown := expected.keys() - outputs.keys():
        named = f"has {min(unknown)!r}" if min(unknown) else "is one array"
        names = ", ".join(sorted(outputs))
        raise SamplesUnfit(
            f"{example}: the expected file {named}, but the outputs are {names}. Use an .npz file with their names"
        )
    wanted = {
        name: _fit(f"{example}: output {name!r}", value, np.asarray(outputs[name])) for name, value in expected.items()
    }
    found = compare(wanted, {name: outputs[name] for name in wanted}, tolerance)
    return f"{found.beyond}. The tolerance is {tolerance} (--atol, --rtol)" if found.beyond else ""


def _fit(subject: str, value: Array, actual: Array) -> Array:
    """Convert to the dtype of the answer, and add the batch dimension if it is missing."""
    row = value[np.newaxis] if value.ndim == actual.ndim - 1 else value
    dtype = "string" if actual.dtype == object else actual.dtype.name
    return fit_array(row, TensorSpec(dtype, actual.shape), subject, "the expected array")
