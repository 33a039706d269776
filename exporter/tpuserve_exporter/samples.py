"""Inputs to check and warm a signature with: the user's own from an .npz file, or made up from its specs."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.loaded_model import SessionModel
from tpuserve_exporter.signature import Array, Signature, Tensors, TensorSpec

_SEED = 20
# Sizes tried for dimensions, other than the batch, that a signature leaves free.
_FREE_SIZES = (8, 32, 224)
# A 1x1 PNG: TensorFlow's image decoders read it whatever they are called.
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)
_TEXT = b"tpuserve"


def find_samples(signature: Signature, rows: int, given: Path | None, model: SessionModel) -> Tensors:
    """At least `rows` rows of inputs that `model` accepts: those `given`, repeated as need be, or made-up ones.

    Raises SamplesUnfit where the given ones do not fit the signature, or the model takes no made-up ones.
    """
    import tensorflow as tf

    if given is not None:
        return read_samples(given, signature, rows)
    reason = ""
    for candidate in _made_up(signature, rows, model.make_example()):
        try:
            model.run(signature, candidate)
        except tf.errors.OpError as error:
            reason = reason_of(error)
        except SamplesUnfit as error:
            reason = str(error)
        else:
            return candidate
    raise SamplesUnfit(f"{signature.name} fails on made-up inputs ({reason}): give real ones, --check samples.npz")


def read_samples(path: Path, signature: Signature, rows: int) -> Tensors:
    """Arrays called `INPUT` or `SIGNATURE/INPUT` in the .npz file, in the signature's dtypes, at least `rows` rows.

    Raises SamplesUnfit naming the input, what was expected and what came.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError) as error:
        raise SamplesUnfit(f"cannot read {path.name} as an .npz file: {error}") from error
    inputs = {name: _fit(name, spec, _find(name, signature, arrays, path)) for name, spec in signature.inputs.items()}
    return _repeat(inputs, rows) if signature.is_batchable else inputs


def take_rows(inputs: Tensors, rows: "slice | Array") -> Tensors:
    return {name: value[rows] for name, value in inputs.items()}


def count_rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def _find(name: str, signature: Signature, arrays: Mapping[str, Array], path: Path) -> Array:
    for key in (f"{signature.name}/{name}", name):
        if key in arrays:
            return arrays[key]
    held = ", ".join(sorted(arrays)) or "nothing"
    raise SamplesUnfit(f"{path.name} has no array for input {name!r} of {signature.name}; it holds {held}")


def _fit(name: str, spec: TensorSpec, value: Array) -> Array:
    dims = spec.shape
    if dims is not None and not (
        len(dims) == value.ndim and all(want in (None, got) for want, got in zip(dims, value.shape, strict=True))
    ):
        raise SamplesUnfit(f"input {name!r} is {spec}, the sample has shape {list(value.shape)}")
    if spec.dtype == "string" and value.dtype.kind in "SU":
        return np.char.encode(value).astype(object) if value.dtype.kind == "U" else value.astype(object)
    if spec.dtype == "string" or not np.can_cast(value.dtype, _numpy_dtype(spec), "same_kind"):
        raise SamplesUnfit(f"input {name!r} is {spec}, the sample has dtype {value.dtype}")
    return value.astype(_numpy_dtype(spec))


def _repeat(inputs: Tensors, rows: int) -> Tensors:
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise SamplesUnfit(f"inputs need one number of rows, and at least one: {counts}")
    count = count_rows(inputs)
    return inputs if count >= rows else take_rows(inputs, np.arange(rows) % count)


def _made_up(signature: Signature, rows: int, example: bytes) -> Iterator[Tensors]:
    """Guesses, likeliest first; reproducible. Strings are text, an example or an image."""
    specs = signature.inputs
    strings = (_TEXT, example, _PNG) if any(spec.dtype == "string" for spec in specs.values()) else (_TEXT,)
    has_free = any(None in (spec.shape or (None,))[1:] for spec in specs.values()) or not signature.is_batchable
    for size, text in itertools.product(_FREE_SIZES if has_free else _FREE_SIZES[:1], strings):
        random = np.random.default_rng(_SEED)
        first = rows if signature.is_batchable else size
        yield {name: _make_up(random, spec, _shape(spec, first, size), text) for name, spec in specs.items()}


def _shape(spec: TensorSpec, first: int, size: int) -> tuple[int, ...]:
    if spec.shape is None:
        return (first,)
    free = [first if axis == 0 else size for axis in range(len(spec.shape))]
    return tuple(free[axis] if dim is None else dim for axis, dim in enumerate(spec.shape))


def _make_up(random: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], text: bytes) -> Array:
    """Floats from 0 to 1; bytes from 0 to 255, as images have; other integers 0 and 1, which any vocabulary has."""
    if spec.dtype == "string":
        return np.full(shape, text, dtype=object)
    dtype = _numpy_dtype(spec)
    if spec.dtype == "bool" or dtype.kind in "iu":
        return random.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(dtype)
    return random.random(shape).astype(dtype)


def _numpy_dtype(spec: TensorSpec) -> "np.dtype[np.generic]":
    import tensorflow as tf

    dtype: np.dtype[np.generic] = np.dtype(tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype)
    return dtype
