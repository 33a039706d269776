"""Inputs to check and warm up a signature: the user's samples, or values made up from its specs."""

import contextlib
import hashlib
from dataclasses import replace

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.domain import Sampled
from tpuserve_exporter.terms.made_up import make_candidates, numpy_dtype
from tpuserve_exporter.terms.sample_files import SampleFile
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

# Candidate sizes of free dimensions, except the batch.
_FREE_SIZES = (8, 32, 224)


def find_samples(
    signature: Signature, rows: int, file: SampleFile | None, model: Sampled, longest: int | None = None
) -> Tensors:
    """Return at least `rows` rows of inputs that `model` accepts: those of `file`, repeated if needed, or made-up ones.

    Made-up inputs are at most `longest` long in free dimensions. Raises SamplesUnfit if the file's samples do not fit
    the signature, or if the model refuses all made-up ones.
    """
    if file is not None:
        samples = read_samples(file, signature, rows, model)
        refusal = refusal_of(signature, samples, model)
        if refusal is not None:
            raise SamplesUnfit(f"{signature.name} fails on the inputs of --check: {refusal}")
        return samples
    found, reason = find_made_up(signature, rows, model, longest)
    if found is None:
        raise SamplesUnfit(
            f"{signature.name} fails on made-up inputs ({reason}). Use --check samples.npz with real inputs"
        )
    return found


def find_made_up(
    signature: Signature, rows: int, model: Sampled, longest: int | None = None
) -> tuple[Tensors | None, str]:
    """Return made-up inputs that `model` accepts, or None and the reason why it refused the likeliest candidate.

    They begin with the rows of the model's own warm-up requests.
    """
    recorded = _recorded_rows(signature, rows, model, longest)
    if recorded is not None:
        return recorded, ""
    reason = ""
    sizes = [size for size in _FREE_SIZES if longest is None or size <= longest] or [longest or 1]
    for candidate in make_candidates(signature, rows, model, sizes):
        refusal = refusal_of(signature, candidate, model)
        if refusal is None:
            return candidate, ""
        reason = reason or refusal
    return None, reason


def _recorded_rows(signature: Signature, rows: int, model: Sampled, longest: int | None) -> Tensors | None:
    """Return the rows of the warm-up requests, and made-up rows of the same sizes, or None if `model` refuses them."""
    requests = [one for one in model.inputs.recorded(signature) if _fits(signature, one, longest)]
    if not requests:
        return None
    if not signature.is_batchable:
        return requests[0] if refusal_of(signature, requests[0], model) is None else None
    alike = [one for one in requests if all(one[name].shape[1:] == requests[0][name].shape[1:] for name in one)]
    joined = {name: np.concatenate([one[name] for one in alike]) for name in requests[0]}
    given = take_rows(joined, np.asarray(distinct_rows(joined)[:rows]))
    missing = rows - count_rows(given)
    filled = add_rows(signature, given, missing, model) if missing else given
    return filled if filled is not None and refusal_of(signature, filled, model) is None else None


def _fits(signature: Signature, inputs: Tensors, longest: int | None) -> bool:
    with contextlib.suppress(SamplesUnfit):
        for name, spec in signature.inputs.items():
            fit_input(name, spec, inputs[name])
        lengths = [inputs[name].shape[axis] for name, spec in signature.inputs.items() for axis in spec.free_axes]
        return longest is None or max(lengths, default=0) <= longest
    return False


def refusal_of(signature: Signature, inputs: Tensors, model: Sampled) -> str | None:
    """Return the reason why `model` does not run on `inputs`, or None if it runs."""
    import tensorflow as tf

    try:
        model.run(signature, inputs)
    except tf.errors.OpError as error:
        return reason_of(error)
    except SamplesUnfit as error:
        return str(error).removeprefix(f"{signature.name}: ")
    return None


def read_samples(file: SampleFile, signature: Signature, rows: int, model: Sampled) -> Tensors:
    """Read the file's rows for each input in the signature's dtypes, repeated to at least `rows` rows if batchable.

    If the file has no array for a signature's only input, and `model` parses tf.Examples, return the rows as
    tf.Examples. Raises SamplesUnfit with the input, the expected spec, and the sample's shape or dtype.
    """
    inputs: Tensors
    try:
        inputs = {name: fit_input(name, spec, file.find(name, signature)) for name, spec in signature.inputs.items()}
    except SamplesUnfit:
        examples = _as_examples(file, signature)
        if examples is None or refusal_of(signature, examples, model) is not None:
            raise
        inputs = examples
    if signature.is_batchable:
        return _repeat(inputs, rows)
    _check_ragged_rows(signature, inputs)
    return inputs


def _check_ragged_rows(signature: Signature, inputs: Tensors) -> None:
    """Raise SamplesUnfit for a ragged input without rows, because the checks would compare no values."""
    for name, spec in signature.inputs.items():
        if spec.row_splits and len(inputs[spec.row_splits[0]]) < 2:
            raise SamplesUnfit(
                f"input {name!r} has no rows, because {spec.row_splits[0]!r} needs at least two row splits"
            )


def _as_examples(file: SampleFile, signature: Signature) -> Tensors | None:
    [(name, spec), *others] = signature.inputs.items()
    if others or spec.dtype != "string" or spec.shape != (None,):
        return None
    examples = file.as_examples(signature)
    return None if examples is None else {name: examples}


def distinct_rows(inputs: Tensors) -> list[int]:
    """Return the index of the first occurrence of each distinct row."""
    first: dict[bytes, int] = {}
    for index in range(count_rows(inputs)):
        digest = hashlib.sha256()
        for value in inputs.values():
            row = np.asarray(value[index])
            digest.update(repr(row.tolist()).encode() if row.dtype == object else row.tobytes())
        first.setdefault(digest.digest(), index)
    return list(first.values())


def add_neighbours(signature: Signature, inputs: Tensors, rows: int, model: Sampled) -> Tensors:
    """Return the first row of `inputs` followed by made-up rows with the same sizes.

    Return `inputs` unchanged if `model` refuses such rows.
    """
    mixed = add_rows(signature, take_rows(inputs, slice(0, 1)), rows - 1, model)
    return inputs if mixed is None or refusal_of(signature, mixed, model) is not None else mixed


def add_rows(signature: Signature, inputs: Tensors, rows: int, model: Sampled) -> Tensors | None:
    """Return `inputs` and made-up rows with the same sizes, or None if `model` refuses the made-up rows."""
    specs = {name: replace(spec, shape=(None, *inputs[name].shape[1:])) for name, spec in signature.inputs.items()}
    like_them = replace(signature, inputs=specs)
    for candidate in make_candidates(like_them, rows, model, _FREE_SIZES[:1]):
        if refusal_of(like_them, candidate, model) is None:
            return {name: np.concatenate([value, candidate[name]]) for name, value in inputs.items()}
    return None


def take_rows(inputs: Tensors, rows: "slice | Array") -> Tensors:
    return {name: value[rows] for name, value in inputs.items()}


def count_rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def fit_input(name: str, spec: TensorSpec, value: Array) -> Array:
    """Return a sample in the dtype of an input. Raises SamplesUnfit as `fit_array` does."""
    return fit_array(value, spec, f"input {name!r}", "the sample")


def fit_array(value: Array, spec: TensorSpec, wanted: str, subject: str) -> Array:
    """Return `value` in the dtype of `spec`. Raises SamplesUnfit for another shape, or a dtype that loses values.

    `wanted` and `subject` name the spec and the value in messages.
    """
    dims = spec.shape
    if dims is not None and not (
        len(dims) == value.ndim and all(want in (None, got) for want, got in zip(dims, value.shape, strict=True))
    ):
        raise SamplesUnfit(f"{wanted} is {spec}, but {subject} has shape {list(value.shape)}")
    if not value.size:  # an empty JSON list has no dtype
        return value.astype(numpy_dtype(spec))
    if spec.dtype == "string" and value.dtype.kind == "O":
        return value
    if spec.dtype == "string" and value.dtype.kind in "SU":
        return np.char.encode(value).astype(object) if value.dtype.kind == "U" else value.astype(object)
    if spec.dtype == "string" or not np.can_cast(value.dtype, numpy_dtype(spec), "same_kind"):
        raise SamplesUnfit(f"{wanted} is {spec}, but {subject} has dtype {value.dtype}")
    return value.astype(numpy_dtype(spec))


def _repeat(inputs: Tensors, rows: int) -> Tensors:
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise SamplesUnfit(f"all inputs need the same number of rows, and at least one. Their rows: {counts}")
    count = count_rows(inputs)
    return inputs if count >= rows else take_rows(inputs, np.arange(rows) % count)


def check_lengths(signature: Signature, inputs: Tensors, sequences: SequenceOptions, what: str) -> None:
    """Raise SamplesUnfit for inputs that are longer than the last sequence bucket, which servers reject."""
    for name, value in inputs.items():
        longest = max((value.shape[axis] for axis in signature.inputs[name].free_axes), default=0)
        if sequences.buckets and longest > sequences.buckets[-1]:
            raise SamplesUnfit(
                f"{what}: input {name!r} of {signature.name} is {longest} long, but the largest of "
                f"--sequence-buckets is {sequences.buckets[-1]}"
            )
