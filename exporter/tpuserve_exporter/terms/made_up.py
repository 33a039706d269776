"""Candidates for inputs of a signature, made up from its specs and from what the model shows of its inputs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tpuserve_exporter.terms.domain import Domain, Sampled
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

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
_TEXT = b"tpuserve"


def _has_strings(signature: Signature) -> bool:
    return any(spec.dtype == "string" for spec in signature.inputs.values())


def make_candidates(signature: Signature, rows: int, model: Sampled, free_sizes: Sequence[int]) -> Iterator[Tensors]:
    """Yield reproducible candidates, the likeliest first. Strings are text, examples or images, one for each row.

    The first candidates have values from the domains of the inputs, and the others 0 and 1.
    """
    specs = signature.inputs
    has_free = any(None in (spec.shape or (None,))[1:] for spec in specs.values()) or not signature.is_batchable
    sizes = free_sizes if has_free else free_sizes[:1]
    splits, counts = make_row_splits(signature, rows)
    domains = model.inputs.domains(signature)
    for known, size, strings in itertools.product(
        [domains, {}] if domains else [{}], sizes, list(_strings(signature, rows, model, max(free_sizes)))
    ):
        random = np.random.default_rng(_SEED)
        first = rows if signature.is_batchable or signature.is_ragged else size
        made = {
            name: _make_up(
                random, spec, _shape(spec, counts.get(name, first), size), strings, known.get(name, Domain())
            )
            for name, spec in specs.items()
            if name not in splits
        }
        yield {**made, **splits}


def _strings(signature: Signature, rows: int, model: Sampled, longest: int) -> Iterator[Sequence[bytes]]:
    yield [_TEXT if index == 0 else b"%s %d" % (_TEXT, index) for index in range(rows)]
    if _has_strings(signature):
        yield model.inputs.make_examples(signature, rows, longest)
        yield [make_image(index) for index in range(rows)]


def _shape(spec: TensorSpec, first: int, size: int) -> tuple[int, ...]:
    if spec.shape is None:
        return (first,)
    free = [first if axis == 0 else size for axis in range(len(spec.shape))]
    return tuple(free[axis] if dim is None else dim for axis, dim in enumerate(spec.shape))


def _make_up(
    random: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], strings: Sequence[bytes], domain: Domain
) -> Array:
    """Make an array from a domain: indices or keys of tables, and floats from 0 to 1 or 255.

    Without tables, uint8 are from 0 to 255 as in images, and other integers 0 and 1. A sequence of them starts with 1,
    because it may be a mask, and a mask of zeros would hide the whole input.
    """
    if spec.dtype == "string":
        has_keys = bool(domain.keys) and isinstance(domain.keys[0], bytes)
        return domain.draw_strings(random, shape) if has_keys else _fill(shape, strings)
    dtype = numpy_dtype(spec)
    if domain.knows_integers:
        return domain.draw_integers(random, shape).astype(dtype)
    if spec.dtype == "uint8":
        return random.integers(0, 256, shape).astype(dtype)
    if spec.dtype == "bool" or dtype.kind in "iu":
        drawn = random.integers(0, 2, shape)
        if spec.free_axes:
            drawn[:, 0] = 1
        return drawn.astype(dtype)
    return (domain.top * random.random(shape)).astype(dtype)


def _fill(shape: tuple[int, ...], strings: Sequence[bytes]) -> Array:
    """Fill an array with strings, one for each row in turn."""
    filled = np.empty(shape, dtype=object)
    for index in range(len(filled) if shape else 0):
        filled[index] = strings[index % len(strings)]
    if not shape:
        filled[()] = strings[0]
    return filled


def numpy_dtype(spec: TensorSpec) -> "np.dtype[np.generic]":
    import tensorflow as tf

    dtype: np.dtype[np.generic] = np.dtype(tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype)
    return dtype
