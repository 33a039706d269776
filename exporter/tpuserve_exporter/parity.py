"""Whether the written SavedModel answers as the source model does: at every size, padded, and loaded both ways."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpuserve_exporter.errors import ParityFailed, reason_of
from tpuserve_exporter.loaded_model import Runnable
from tpuserve_exporter.samples import count_rows, distinct_rows, take_rows
from tpuserve_exporter.signature import Array, Signature, Tensors


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element may differ by `atol + rtol * |expected|`."""

    atol: float
    rtol: float

    @classmethod
    def choose(cls, in_bfloat16: bool, converted: bool, atol: float | None, rtol: float | None) -> "Tolerance":
        """What was asked for, else a few units in the last place of what the model computes in.

        bfloat16 has 8 bits of mantissa (a unit is 0.4 to 0.8 %), and kernels for other batch sizes round at other
        places. `converted` to another compute dtype, a model rounds everywhere else.
        """
        default = cls(5e-2, 5e-2) if converted else cls(2e-2, 2e-2) if in_bfloat16 else cls(1e-5, 1e-4)
        return cls(default.atol if atol is None else atol, default.rtol if rtol is None else rtol)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one answer is from another. `beyond` says what is outside the tolerance; empty when nothing is."""

    max_abs: float
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class ParityResult:
    """The largest difference seen in `comparisons` comparisons, over `rows` different rows.

    `all_nan` are outputs of which the source model never answered anything but NaN: equal, and yet nothing is proven.
    """

    max_abs_difference: float
    rows: int
    comparisons: int
    all_nan: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    inputs: Tensors
    real_rows: int | None


def check_parity(
    signature: Signature,
    samples: Tensors,
    batch_sizes: Sequence[int],
    reference: Runnable,
    loaded: Mapping[str, Runnable],
    tolerance: Tolerance,
    *,
    padded: bool,
) -> ParityResult:
    """Compare `loaded`, by the way each was loaded, with `reference`. Raises ParityFailed for the first that is off.

    `padded` compares a padded batch with one that is not, which only models with independent rows can pass.
    """
    largest, comparisons = 0.0, 0
    all_nan = set(signature.outputs)
    for case in _cases(signature, samples, batch_sizes, padded):
        expected = reference.run(signature, _take_real(case.inputs, case.real_rows))
        all_nan -= {name for name, value in expected.items() if not _is_all_nan(np.asarray(value))}
        for way, model in loaded.items():
            actual = _take_real(_run(model, signature, case, way), case.real_rows)
            difference = compare(expected, actual, tolerance)
            largest, comparisons = max(largest, difference.max_abs), comparisons + 1
            if difference.beyond:
                raise _failure(
                    f"{signature.name}, {case.name}, loaded by {way}: {difference.beyond}", largest, tolerance
                )
    rows = len(distinct_rows(samples)) if signature.is_batchable else 1
    return ParityResult(largest, rows, comparisons, tuple(sorted(all_nan)))


def _is_all_nan(value: Array) -> bool:
    """Of bfloat16 too, which numpy knows as kind V. An empty output has no NaN."""
    if value.dtype.kind not in "fc" and value.dtype.name != "bfloat16":
        return False
    return value.size > 0 and bool(np.isnan(value.astype(np.complex128)).all())


def compare(expected: Tensors, actual: Tensors, tolerance: Tolerance) -> Difference:
    """Floats within the tolerance, NaN equal to NaN; everything else exactly."""
    if expected.keys() != actual.keys():
        return Difference(np.inf, f"outputs {sorted(actual)} instead of {sorted(expected)}")
    largest = Difference(0.0)
    for name, value in expected.items():
        difference = _compare_arrays(name, np.asarray(value), np.asarray(actual[name]), tolerance)
        if difference.beyond:
            return difference
        largest = max(largest, difference, key=lambda one: one.max_abs)
    return largest


def _compare_arrays(name: str, expected: Array, actual: Array, tolerance: Tolerance) -> Difference:
    if expected.shape != actual.shape:
        return Difference(np.inf, f"output {name!r} has shape {list(actual.shape)} instead of {list(expected.shape)}")
    if expected.dtype == object or expected.dtype.kind in "biuSU":
        unequal = int(np.sum(expected != actual))
        return Difference(float(bool(unequal)), f"output {name!r} differs in {unequal} element(s)" if unequal else "")
    return _compare_floats(name, expected, actual, tolerance)


def _compare_floats(name: str, expected: Array, actual: Array, tolerance: Tolerance) -> Difference:
    """In float64, or complex128: bfloat16 (kind V) has no arithmetic of its own worth comparing in."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    want, got = expected.astype(wide), actual.astype(wide)
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(want - got))
        excess = gaps - (tolerance.atol + tolerance.rtol * np.abs(want))
    gaps = np.nan_to_num(gaps, nan=np.inf)
    largest = float(gaps.max(initial=0.0))
    if bool(np.all(same | (excess <= 0))):
        return Difference(largest)
    return Difference(largest, f"output {name!r} is off by up to {largest:.3g}")


def _cases(signature: Signature, samples: Tensors, batch_sizes: Sequence[int], padded: bool) -> Iterator[_Case]:
    """Every batch size, every row, and a batch that lacks a row of the largest size."""
    if not signature.is_batchable:
        yield _Case("as it is", samples, None)
        return
    for size in batch_sizes:
        yield _Case(f"batch of {size}", take_rows(samples, slice(0, size)), None)
    largest = max(batch_sizes)
    for start in range(largest, count_rows(samples), largest):
        rows = take_rows(samples, slice(start, start + largest))
        yield _Case(f"rows {start} to {start + count_rows(rows) - 1}", rows, None)
    if padded and largest > 1:
        real = largest - 1
        yield _Case(f"{real} row(s) padded to {largest}", _pad(take_rows(samples, slice(0, real)), largest), real)


def _pad(inputs: Tensors, rows: int) -> Tensors:
    """Repeat the last row, as servers do: a real row, because a model may divide by its norm."""
    last = {name: np.repeat(value[-1:], rows - len(value), axis=0) for name, value in inputs.items()}
    return {name: np.concatenate([value, last[name]]) for name, value in inputs.items()}


def _take_real(tensors: Tensors, rows: int | None) -> Tensors:
    return tensors if rows is None else take_rows(tensors, slice(0, rows))


def _run(model: Runnable, signature: Signature, case: _Case, way: str) -> Tensors:
    import tensorflow as tf

    try:
        return model.run(signature, case.inputs)
    except tf.errors.OpError as error:
        raise ParityFailed(f"{signature.name}, {case.name}, loaded by {way}: {reason_of(error)}") from error


def _failure(what: str, largest: float, tolerance: Tolerance) -> ParityFailed:
    return ParityFailed(
        f"{what}, allowed is {tolerance.atol:g} + {tolerance.rtol:g} * |expected| (--atol, --rtol)",
        max_abs_difference=largest if np.isfinite(largest) else None,
        atol=tolerance.atol,
        rtol=tolerance.rtol,
    )
