"""Inputs to check and warm up a signature: the user's samples, or values made up from its specs."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.sample_files import SampleFile
from tpuserve_exporter.terms.signature import Array, Sampled, Signature, Tensors, TensorSpec

# Lengths of rows in turn. Rows are not empty, because a model may compute their means.
_LENGTHS = (2, 1, 3)


def make_row_splits(signature: Signature, rows: int) -> tuple[dict[str, Array], Mapping[str, int]]:
    """Make the row splits of every ragged input by name, and count the values of each input, for `rows` rows."""
    splits, counts = dict[str, Array](), dict[str, int]()
    for name, spec in signature.inputs.items():
        count = _fixed_rows(signature, spec.row_splits) or rows
        for one in spec.row_splits:
            lengths = np.resize(_LENGTHS, count)
            splits[one] = np.concatenate([[0], np.cumsum(lengths)]).astype(signature.inputs[one].dtype)
            count = int(lengths.sum())
        if spec.row_splits:
            counts[name] = count
    return splits, counts


def _fixed_rows(signature: Signature, splits: Sequence[str]) -> int | None:
    """Return the number of rows of a ragged input, or None if its shape does not fix it."""
    shape = signature.inputs[splits[0]].shape if splits else None
    return shape[0] - 1 if shape and shape[0] is not None else None


_HEIGHT, _WIDTH = 37, 49


def make_image(variant: int) -> bytes:
    """Make an RGB image with a smooth pattern that depends on `variant`: PNG if it is even, or JPEG if it is odd.

    All images have one size, for graphs that do not resize. A resize would average a noisy pattern to uniform grey.
    """
    import tensorflow as tf

    random = np.random.default_rng((_SEED, variant))
    across, down = np.meshgrid(np.linspace(0, 2 * np.pi, _WIDTH), np.linspace(0, 2 * np.pi, _HEIGHT))
    waves = random.uniform(0.2, 2, (3, 2))
    shades = [np.sin(across * wide + down * high + random.uniform(0, 6)) for wide, high in waves]
    image = np.rint(127.5 + 127.5 * np.stack(shades, axis=-1)).astype(np.uint8)
    encode = tf.io.encode_jpeg if variant % 2 else tf.io.encode_png
    return bytes(encode(image).numpy())


_SEED = 20
# Candidate sizes of free dimensions, except the batch.
_FREE_SIZES = (8, 32, 224)
_TEXT = b"tpuserve"


def find_samples(
    signature: Signature, rows: int, file: SampleFile | None, model: Sampled, longest: int | None = None
) -> Tensors:
    """Return at least `rows` rows of inputs that `model` accepts: `given` samples, repeated if needed, or made-up ones.

    Made-up inputs are at most `longest` long in free dimensions. Raises SamplesUnfit if the given samples do not fit
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
    """Return made-up inputs that `model` accepts, or None and the reason why it refused the likeliest candidate."""
    reason = ""
    sizes = [size for size in _FREE_SIZES if longest is None or size <= longest] or [longest or 1]
    for candidate in _made_up(
        signature, rows, model.make_examples(rows, max(sizes)) if _has_strings(signature) else (), sizes
    ):
        refusal = refusal_of(signature, candidate, model)
        if refusal is None:
            return candidate, ""
        reason = reason or refusal
    return None, reason


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
    specs = {name: replace(spec, shape=(None, *inputs[name].shape[1:])) for name, spec in signature.inputs.items()}
    like_them = replace(signature, inputs=specs)
    made = find_made_up(like_them, rows - 1, model)[0]
    if made is None:
        return inputs
    mixed = {name: np.concatenate([value[:1], made[name]]) for name, value in inputs.items()}
    return mixed if refusal_of(signature, mixed, model) is None else inputs


def take_rows(inputs: Tensors, rows: "slice | Array") -> Tensors:
    return {name: value[rows] for name, value in inputs.items()}


def count_rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def fit_input(name: str, spec: TensorSpec, value: Array) -> Array:
    """Return a sample in the dtype of an input. Raises SamplesUnfit as `fit_array` does."""
    return fit_array(value, spec, f"input {name!r}", "the sample")


def fit_array(value: Array, spec: TensorSpec, wanted: str, subject: str) -> Array:
    """Return `value` in the dtype of `spec`. Raises SamplesUnfit for another shape, or a dtype that loses values.

    `wanted` and `given` name the spec and the value in messages.
    """
    dims = spec.shape
    if dims is not None and not (
        len(dims) == value.ndim and all(want in (None, got) for want, got in zip(dims, value.shape, strict=True))
    ):
        raise SamplesUnfit(f"{wanted} is {spec}, but {subject} has shape {list(value.shape)}")
    if not value.size:  # an empty JSON list has no dtype
        return value.astype(_numpy_dtype(spec))
    if spec.dtype == "string" and value.dtype.kind == "O":
        return value
    if spec.dtype == "string" and value.dtype.kind in "SU":
        return np.char.encode(value).astype(object) if value.dtype.kind == "U" else value.astype(object)
    if spec.dtype == "string" or not np.can_cast(value.dtype, _numpy_dtype(spec), "same_kind"):
        raise SamplesUnfit(f"{wanted} is {spec}, but {subject} has dtype {value.dtype}")
    return value.astype(_numpy_dtype(spec))


def _repeat(inputs: Tensors, rows: int) -> Tensors:
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise SamplesUnfit(f"all inputs need the same number of rows, and at least one. Their rows: {counts}")
    count = count_rows(inputs)
    return inputs if count >= rows else take_rows(inputs, np.arange(rows) % count)


def _has_strings(signature: Signature) -> bool:
    return any(spec.dtype == "string" for spec in signature.inputs.values())


def _made_up(
    signature: Signature, rows: int, examples: Sequence[bytes], free_sizes: Sequence[int]
) -> Iterator[Tensors]:
    """Yield reproducible candidates, the likeliest first. Strings are text, examples or images, one for each row."""
    specs = signature.inputs
    texts = [_TEXT if index == 0 else b"%s %d" % (_TEXT, index) for index in range(rows)]
    images = [make_image(index) for index in range(rows)] if _has_strings(signature) else []
    has_free = any(None in (spec.shape or (None,))[1:] for spec in specs.values()) or not signature.is_batchable
    sizes = free_sizes if has_free else free_sizes[:1]
    splits, counts = make_row_splits(signature, rows)
    for size, strings in itertools.product(sizes, (texts, examples, images) if _has_strings(signature) else (texts,)):
        random = np.random.default_rng(_SEED)
        first = rows if signature.is_batchable or signature.is_ragged else size
        made = {
            name: _make_up(random, spec, _shape(spec, counts.get(name, first), size), strings)
            for name, spec in specs.items()
            if name not in splits
        }
        yield {**made, **splits}


def _shape(spec: TensorSpec, first: int, size: int) -> tuple[int, ...]:
    if spec.shape is None:
        return (first,)
    free = [first if axis == 0 else size for axis in range(len(spec.shape))]
    return tuple(free[axis] if dim is None else dim for axis, dim in enumerate(spec.shape))


def _make_up(random: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], strings: Sequence[bytes]) -> Array:
    """Make an array: floats from 0 to 1, uint8 from 0 to 255 as in images, or other integers 0 and 1.

    Every vocabulary has 0 and 1. A sequence of them starts with 1, because it may be a mask, and a mask of zeros would
    hide the whole input.
    """
    if spec.dtype == "string":
        return _fill(shape, strings)
    dtype = _numpy_dtype(spec)
    if spec.dtype == "uint8":
        return random.integers(0, 256, shape).astype(dtype)
    if spec.dtype == "bool" or dtype.kind in "iu":
        drawn = random.integers(0, 2, shape)
        if spec.free_axes:
            drawn[:, 0] = 1
        return drawn.astype(dtype)
    return random.random(shape).astype(dtype)


def _fill(shape: tuple[int, ...], strings: Sequence[bytes]) -> Array:
    """Fill an array with strings, one for each row in turn."""
    filled = np.empty(shape, dtype=object)
    for index in range(len(filled) if shape else 0):
        filled[index] = strings[index % len(strings)]
    if not shape:
        filled[()] = strings[0]
    return filled


def _numpy_dtype(spec: TensorSpec) -> "np.dtype[np.generic]":
    import tensorflow as tf

    dtype: np.dtype[np.generic] = np.dtype(tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype)
    return dtype


def check_lengths(signature: Signature, inputs: Tensors, sequences: SequenceOptions, what: str) -> None:
    """Raise SamplesUnfit for inputs that are longer than the last sequence bucket, which servers reject."""
    for name, value in inputs.items():
        longest = max((value.shape[axis] for axis in signature.inputs[name].free_axes), default=0)
        if sequences.buckets and longest > sequences.buckets[-1]:
            raise SamplesUnfit(
                f"{what}: input {name!r} of {signature.name} is {longest} long, but the largest of "
                f"--sequence-buckets is {sequences.buckets[-1]}"
            )
