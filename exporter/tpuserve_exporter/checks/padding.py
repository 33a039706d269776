"""Checks the lengths up to the largest sequence bucket: padding changes no answer, and the source answers the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare, is_float
from tpuserve_exporter.checks.program_answers import pad_sequence
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.samples import take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors, TensorSpec

# A few rows are enough, because another check tests whether rows depend on each other.
_ROWS = 2


@dataclass(frozen=True, slots=True)
class LengthTrial:
    """Rows that servers pad to `bucket`, and a description of their length.

    A source may refuse a length, unless it is `required`. The bucket itself is: servers pad to it.
    """

    bucket: int
    inputs: Tensors
    what: str
    required: bool


def list_trials(signature: Signature, samples: Tensors, sequences: SequenceOptions) -> Iterator[LengthTrial]:
    """Yield the samples' rows, cut below each bucket, and then with each bucket's shortest and longest lengths."""
    if not signature.has_sequences:
        return
    rows, shortest = take_rows(samples, slice(0, _ROWS)), 1
    # A model may need inputs of different lengths together, which rows of one length do not have.
    takes_one_length = len({rows[name].shape[axis] for name, axis in _free_axes(signature)}) == 1
    for bucket in sequences.buckets:
        if bucket > 1:
            yield LengthTrial(bucket, _crop(signature, rows, bucket - 1), f"rows of up to {bucket - 1}", True)
        for length in sorted({shortest, max(bucket - 1, shortest), bucket}):
            required = takes_one_length and length == bucket
            yield LengthTrial(bucket, _stretch(signature, rows, length), f"rows of length {length}", required)
        shortest = bucket + 1


def _free_axes(signature: Signature) -> list[tuple[str, int]]:
    return [(name, axis) for name, spec in signature.inputs.items() for axis in spec.free_axes]


def check_padding(
    signature: Signature,
    samples: Tensors,
    sequences: SequenceOptions,
    reference: Runnable,
    model: Runnable,
    tolerance: Tolerance,
) -> int:
    """Compare the model's answers to padded rows with the reference's answers to the same rows without padding.

    Cut outputs as servers do, in free dimensions that have the padded length. Also compare rows without padding, which
    other servers do not pad. Return the number of comparisons.

    Raises:
        ParityFailed: for the first difference beyond the tolerance, or if only a bucket's answers have NaN.
        SamplesUnfit: if a padding value has the wrong dtype, or a model fails on the rows.
    """
    comparisons, has_nan = 0, False
    for trial in list_trials(signature, samples, sequences):
        try:
            expected = _run(reference, signature, trial.inputs, trial.what)
        except SamplesUnfit:
            if not trial.required:
                continue
            raise
        _check_nan(signature, trial, expected, has_nan)
        has_nan = has_nan or _has_nan(expected)
        padded = _pad(signature, trial, sequences)
        fits = all(value.shape == trial.inputs[name].shape for name, value in padded.items())
        if fits or trial.required:
            _compare(signature, trial, expected, _run(model, signature, trial.inputs, trial.what), tolerance)
            comparisons += 1
        if not fits:
            answers = _run(model, signature, padded, f"{trial.what} padded to {trial.bucket}")
            _compare_padded(signature, trial, expected, answers, tolerance)
            comparisons += 1
    return comparisons


def _check_nan(signature: Signature, trial: LengthTrial, expected: Tensors, is_usual: bool) -> None:
    """Refuse a length that a model takes beyond its tables. JAX then returns NaN, where other frameworks raise."""
    if not is_usual and _has_nan(expected):
        raise ParityFailed(
            f"{signature.name}: the source returns NaN for {trial.what}, but not for shorter ones. Is a bucket of "
            "--sequence-buckets longer than the model takes?"
        )


def _has_nan(outputs: Tensors) -> bool:
    return any(is_float(value) and bool(np.isnan(value.astype(np.float64)).any()) for value in outputs.values())


def _compare(
    signature: Signature, trial: LengthTrial, expected: Tensors, actual: Tensors, tolerance: Tolerance
) -> None:
    if beyond := compare(expected, actual, tolerance).beyond:
        raise ParityFailed(
            f"{signature.name}, {trial.what}: {beyond}. The version differs from the source at this length. Set the "
            "length to a number with --input, if the model's code depends on it"
        )


def _compare_padded(
    signature: Signature, trial: LengthTrial, expected: Tensors, actual: Tensors, tolerance: Tolerance
) -> None:
    if beyond := compare(expected, _cut(signature, actual, expected, trial.bucket), tolerance).beyond:
        raise ParityFailed(
            f"{signature.name}, rows padded to {trial.bucket}: {beyond}. A model that is padded must mask its "
            "padding. Omit --sequence-buckets, or set --pad-value to the value that the model masks"
        )


def _pad(signature: Signature, trial: LengthTrial, sequences: SequenceOptions) -> Tensors:
    return {
        name: pad_sequence(name, signature.inputs[name], value, trial.bucket, sequences.pad_values.get(name))
        for name, value in trial.inputs.items()
    }


def _crop(signature: Signature, inputs: Tensors, longest: int) -> Tensors:
    return {
        name: value[
            tuple(slice(longest if axis in signature.inputs[name].free_axes else None) for axis in range(value.ndim))
        ]
        for name, value in inputs.items()
    }


def _stretch(signature: Signature, inputs: Tensors, length: int) -> Tensors:
    """Cut or repeat the values of each free dimension to `length`. Repeated values are as valid as the given ones."""
    stretched = dict(inputs)
    for name, value in inputs.items():
        for axis in signature.inputs[name].free_axes:
            if value.shape[axis]:
                stretched[name] = np.take(stretched[name], np.arange(length) % value.shape[axis], axis)
    return stretched


def _cut(signature: Signature, outputs: Tensors, like: Tensors, bucket: int) -> Tensors:
    return {name: _cut_one(signature.outputs[name], value, like[name], bucket) for name, value in outputs.items()}


def _cut_one(spec: TensorSpec, value: Array, like: Array, bucket: int) -> Array:
    if value.ndim != like.ndim:
        return value
    ends = [
        like.shape[axis] if axis in spec.free_axes and size == bucket else None for axis, size in enumerate(value.shape)
    ]
    return value[tuple(map(slice, ends))]


def _run(model: Runnable, signature: Signature, inputs: Tensors, what: str) -> Tensors:
    import tensorflow as tf

    try:
        return model.run(signature, inputs)
    except (tf.errors.OpError, SamplesUnfit) as error:
        raise SamplesUnfit(
            f"{signature.name} fails on {what}: {reason_of(error)}. Use --sequence-buckets of lengths that it takes"
        ) from error
