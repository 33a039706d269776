"""Checks whether padding changes the results of real elements. If it does, servers may not pad to sequence buckets."""

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.sequence_padding import pad_sequence
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.runnable import Runnable
from tpuserve_exporter.samples.samples import take_rows
from tpuserve_exporter.signature import Array, Signature, Tensors, TensorSpec

# A few rows are enough, because another check tests whether rows depend on each other.
_ROWS = 4


def check_padding(
    signature: Signature, samples: Tensors, sequences: SequenceOptions, model: Runnable, tolerance: Tolerance
) -> int:
    """Compare unpadded rows with the same rows padded to each bucket, by one element or more.

    Cut outputs as servers do, in free dimensions that have the padded length. Return the number of comparisons.

    Raises:
        ParityFailed: for the first difference beyond the tolerance.
        SamplesUnfit: if a padding value has the wrong dtype, or the model fails on the rows.
    """
    buckets = [bucket for bucket in sequences.buckets if bucket > 1]
    for bucket in buckets:
        rows = _crop(signature, take_rows(samples, slice(0, _ROWS)), bucket - 1)
        padded = {
            name: pad_sequence(name, signature.inputs[name], value, bucket, sequences.pad_values.get(name))
            for name, value in rows.items()
        }
        expected = _run(model, signature, rows, f"rows of up to {bucket - 1}")
        actual = _cut(signature, _run(model, signature, padded, f"rows padded to {bucket}"), expected, bucket)
        difference = compare(expected, actual, tolerance)
        if difference.beyond:
            raise ParityFailed(
                f"{signature.name}, rows padded to {bucket}: {difference.beyond}. A model that is padded must mask "
                "its padding. Omit --sequence-buckets, or set --pad-value to the value that the model masks"
            )
    return len(buckets)


def _crop(signature: Signature, inputs: Tensors, longest: int) -> Tensors:
    return {
        name: value[
            tuple(slice(longest if axis in signature.inputs[name].free_axes else None) for axis in range(value.ndim))
        ]
        for name, value in inputs.items()
    }


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
        raise SamplesUnfit(f"{signature.name} fails on {what}: {reason_of(error)}") from error
