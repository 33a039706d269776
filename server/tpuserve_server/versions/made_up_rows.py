"""Made-up rows: find the signatures of a version that no request can run, before the version becomes available.

A row that the model refuses shows nothing, because a client may send a better one. Errors that no input can prevent
show that a signature cannot answer: a variable without a value, an operation or a program that this machine lacks.
"""

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tpuserve_server.core.terms.deadline import limit_runs
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    DeviceLost,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unimplemented,
)
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.types import Array, Signature, Tensors, TensorSpec

# Errors of the model, whatever its inputs. Others may be those of the row, or of this moment. Some runtimes report a
# refused row as Internal.
_OF_THE_MODEL: Final = (FailedPrecondition, NotFound, Unimplemented)
# TensorFlow reports a missing kernel inside of a function in the first run, as InvalidArgument.
_MISSING_KERNEL: Final = "OpKernel"
_NO_ROWS: Final = (
    "the server makes no rows for it, because it changes the model, or has inputs of unknown rank or over 256 MiB"
)
_NOT_TRIED: Final = "the server makes no rows for it, because one for another signature does not end"
# Limit of one run, in seconds, for executors that can end it.
RUN_LIMIT_S: Final = 30.0
# More elements make a row too expensive, unless fixed dimensions need them.
_MOST_ELEMENTS: Final = 1 << 20
# No row may take more memory, whatever its fixed dimensions.
_MOST_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of made-up rows, with reasons by signature.

    `runs` have succeeded. A `broken` signature cannot answer, and the rows do not show it for an `unknown` one.
    `is_late`: a run was ended.
    """

    runs: int = 0
    broken: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    is_late: bool = False


class _Filling(NamedTuple):
    """The values of a row: sizes of free dimensions after the first, numbers, and strings."""

    size: int
    number: int
    text: bytes


def _small_image() -> bytes:
    """Return a black RGB image of 8 by 8 pixels as PNG, which TensorFlow's decoders of JPEG accept, too."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress((b"\0" + bytes(24)) * 8)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# Ones first: zeros divide by zero, and make sizes of tensors zero. The empty string is an empty tf.Example, too. Images
# and sequences of free sizes may have to be as large as a network's kernels.
_FILLINGS: Final = (
    _Filling(1, 1, b"text"),
    _Filling(1, 0, b""),
    _Filling(32, 1, _small_image()),
    _Filling(224, 1, b"1"),
)


def try_signatures(servable: Servable, names: Iterable[str], limit_s: float = RUN_LIMIT_S) -> Tried:
    """Run made-up rows of these signatures, one row each, until the model accepts one. Blocks.

    A run that takes longer than `limit_s` ends the trial.

    Raises:
        DeviceLost: the device no longer works.
    """
    runs = 0
    broken: dict[str, str] = {}
    unknown: dict[str, str] = {}
    is_late = False
    for name in names:
        if is_late:
            unknown[name] = _NOT_TRIED
            continue
        refusals = _refusals(servable, servable.signatures[name], limit_s)
        if refusals is None:
            runs += 1
        elif refusals and isinstance(refusals[-1], DeadlineExceeded):
            is_late, unknown[name] = True, refusals[-1].message
        elif (found := next(filter(_is_of_the_model, refusals), None)) is not None:
            broken[name] = found.message.rstrip(".")
        else:
            unknown[name] = refusals[0].message if refusals else _NO_ROWS
    return Tried(runs, broken, unknown, is_late)


def _refusals(servable: Servable, signature: Signature, limit_s: float) -> list[ServingError] | None:
    """Return the errors of made-up rows, or None if the model accepts one."""
    refusals: list[ServingError] = []
    for inputs in made_up_rows(signature):
        with limit_runs(limit_s):
            refusal = _try(servable, signature, inputs)
        if refusal is None:
            return None
        refusals.append(refusal)
        if isinstance(refusal, DeadlineExceeded):
            break
    return refusals


def made_up_rows(signature: Signature) -> Iterator[Tensors]:
    """Yield single rows of inputs that fit a signature, the most likely one first.

    Yields none for inputs of unknown rank, because operations may end the process for another rank. Yields none for
    inputs of more than 256 MiB, nor for a signature whose runs have effects.
    """
    specs = signature.inputs.values()
    if signature.has_effects or any(spec.shape is None for spec in specs):
        return
    splits = {name for names in signature.ragged_inputs.values() for name in names}
    has_strings = any(spec.dtype.hasobject for spec in specs)
    has_free_sizes = any(None in (spec.shape or ())[1:] for spec in specs)
    for filling in _FILLINGS:
        if filling.size > 1 and not has_strings and not has_free_sizes:
            return
        shapes = {spec.name: _shape(spec, filling.size) for spec in specs}
        if filling.size > 1 and max(map(math.prod, shapes.values())) > _MOST_ELEMENTS:
            return
        if sum(math.prod(shapes[spec.name]) * spec.dtype.itemsize for spec in specs) > _MOST_BYTES:
            return
        made = {
            spec.name: _row_splits(spec) if spec.name in splits else _fill(spec, shapes[spec.name], filling)
            for spec in specs
        }
        yield made | dict(signature.defaults)


def _shape(spec: TensorSpec, size: int) -> tuple[int, ...]:
    first, *inner = spec.shape or (1,)
    # The first dimension counts rows, even if it is the only one.
    sizes = (1 if first is None else first, *(size if wanted is None else wanted for wanted in inner))
    return sizes if spec.shape else ()


def _fill(spec: TensorSpec, shape: tuple[int, ...], filling: _Filling) -> Array:
    return np.full(shape, filling.text if spec.dtype.hasobject else filling.number, spec.dtype)


def _row_splits(spec: TensorSpec) -> Array:
    """Return row splits of one value: it belongs to the first row, and other rows of a fixed number are empty."""
    count = spec.shape[0] if spec.shape else None
    return np.minimum(np.arange(2 if count is None else count, dtype=spec.dtype), 1)


def _try(servable: Servable, signature: Signature, inputs: Tensors) -> ServingError | None:
    try:
        servable.dispatch(signature.name, inputs, tuple(signature.outputs)).result()
    except DeviceLost:
        raise
    except ServingError as error:
        return error.copy()
    return None


def _is_of_the_model(error: ServingError) -> bool:
    if isinstance(error, InvalidArgument):
        return _MISSING_KERNEL in error.message
    return isinstance(error, _OF_THE_MODEL)
