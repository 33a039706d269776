"""Compares a written SavedModel with its source: at every batch size, padded, and loaded in every way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpuserve_exporter.checks.difference import Difference, OutputDifference, Tolerance, compare, is_float, merge, split
from tpuserve_exporter.errors import ParityFailed, reason_of
from tpuserve_exporter.terms.samples import count_rows, distinct_rows, take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors


@dataclass(frozen=True, slots=True)
class Comparison:
    """One batch: the answer of the version, loaded in one way, against the source's answer.

    `bucket` is the batch size, or None if the signature has no batch dimension.
    """

    case: str
    bucket: int | None
    padded: bool
    loaded_by: str
    difference: Difference

    @property
    def where(self) -> str:
        return f"{self.case}, loaded by {self.loaded_by}"


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Comparisons of one signature over `rows` different rows.

    `all_nan` are outputs for which the source only returned NaN. Equal NaN values do not prove that the models agree.
    """

    rows: int
    comparisons: tuple[Comparison, ...]
    all_nan: tuple[str, ...] = ()

    @property
    def max_abs_difference(self) -> float:
        return max((one.difference.max_abs for one in self.comparisons), default=0.0)

    @property
    def outputs(self) -> dict[str, OutputDifference]:
        return _by_output(self.comparisons)

    @property
    def failed(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.difference.beyond]

    def other_classes(self) -> list[str]:
        """Return the outputs whose largest score is not always at the source's class: `scores: 2 of 64`."""
        found = self.outputs.items()
        return [
            f"{name}: {one.ranked - one.agreeing} of {one.ranked}" for name, one in found if one.agreeing < one.ranked
        ]

    def below(self, top1: float) -> list[str]:
        """Return the outputs whose top-1 agreement with the source is below `top1`: `scores: 60.0%`."""
        shares = {name: one.top1_agreement for name, one in self.outputs.items()}
        return [f"{name}: {share:.1%}" for name, share in shares.items() if share is not None and share < top1]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "comparisons": len(self.comparisons),
            "outputs": {name: one.to_json() for name, one in self.outputs.items()},
            "buckets": [_bucket_to_json(group) for group in self._by_bucket()],
        }

    def _by_bucket(self) -> list[list[Comparison]]:
        groups: dict[tuple[int | None, bool, str], list[Comparison]] = {}
        for one in self.comparisons:
            groups.setdefault((one.bucket, one.padded, one.loaded_by), []).append(one)
        return list(groups.values())


def _by_output(comparisons: Iterable[Comparison]) -> dict[str, OutputDifference]:
    found: dict[str, list[OutputDifference]] = {}
    for one in comparisons:
        for name, difference in one.difference.outputs.items():
            found.setdefault(name, []).append(difference)
    return {name: merge(differences) for name, differences in found.items()}


def _bucket_to_json(group: list[Comparison]) -> Mapping[str, Any]:
    first = group[0]
    return {
        "batch_size": first.bucket,
        "padded": first.padded,
        "loaded_by": first.loaded_by,
        "comparisons": len(group),
        "outputs": {name: one.to_json() for name, one in _by_output(group).items()},
    }


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs to compare with: a batch of one size, or remaining rows. A padded batch begins with `real_rows`."""

    name: str
    inputs: Tensors
    bucket: int | None = None
    real_rows: int | None = None

    @property
    def real(self) -> Tensors:
        """Inputs for the source, which never gets padding."""
        return _take_real(self.inputs, self.real_rows)


def compare_cases(
    signature: Signature,
    samples: Tensors,
    batch_sizes: Sequence[int],
    reference: Runnable,
    loaded: Mapping[str, Runnable],
    tolerance: Tolerance,
    *,
    padded: bool,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> ParityResult:
    """Compare the `loaded` models, by the way of loading, with `reference`. `require_parity` judges the result.

    With `padded`, also compare a padded batch with an unpadded one. Only models with independent rows pass that.
    `advance` gets the numbers of done cases and of all cases. Raises ParityFailed if a case does not run.
    """
    comparisons: list[Comparison] = []
    proven: set[str] = set()
    cases = list(list_cases(signature, samples, batch_sizes, padded))
    for done, case in enumerate(cases):
        advance(done, len(cases))
        expected = reference.run(signature, case.real)
        proven |= {name for name, value in expected.items() if not _is_all_nan(np.asarray(value))}
        comparisons += [_compare(model, way, signature, case, expected, tolerance) for way, model in loaded.items()]
        del expected  # its memory is free before the next case runs
    rows = len(distinct_rows(samples)) if signature.is_batchable else 1
    return ParityResult(rows, tuple(comparisons), tuple(sorted(signature.outputs.keys() - proven)))


def _compare(
    model: Runnable, way: str, signature: Signature, case: Case, expected: Tensors, tolerance: Tolerance
) -> Comparison:
    actual = _take_real(_run(model, signature, case, way), case.real_rows)
    padded = case.real_rows is not None
    return Comparison(case.name, case.bucket, padded, way, compare(expected, actual, tolerance))


def join(results: Sequence[ParityResult], *, padded: bool) -> ParityResult:
    """Return the comparisons of one signature in all ways, the padded ones only if `padded`."""
    comparisons = (one for result in results for one in result.comparisons)
    return replace(results[0], comparisons=tuple(one for one in comparisons if padded or not one.padded))


def require_parity(signature: Signature, result: ParityResult, tolerance: Tolerance) -> None:
    """Raise ParityFailed, with all comparisons, if one is outside the tolerance or too few first classes agree."""
    if result.failed:
        raise _failure(signature, result, tolerance)
    if below := result.below(tolerance.top1):
        raise ParityFailed(
            f"{signature.name} agrees with the source's first class in too few rows ({', '.join(below)}). The minimum "
            f"is {tolerance.top1:.0%}. Made-up inputs give no clear first class: use --check with real inputs, or "
            "set --atol",
            parity={signature.name: result.to_json()},
        )


def require_shapes(signature: Signature, result: ParityResult, tolerance: Tolerance) -> None:
    """Check a model whose answers change each time. Raises ParityFailed if outputs or their shapes differ."""
    if misshapen := [one for one in result.failed if one.difference.is_misshapen]:
        raise _failure(signature, replace(result, comparisons=tuple(misshapen)), tolerance)


def _is_all_nan(value: Array) -> bool:
    """Return whether all values are NaN. An empty output has none."""
    if not is_float(value) and value.dtype.kind != "c":
        return False
    return value.size > 0 and all(np.isnan(piece.astype(np.complex128)).all() for piece in split(value))


def list_cases(signature: Signature, samples: Tensors, batch_sizes: Sequence[int], padded: bool) -> Iterator[Case]:
    """Yield a case for every batch size, for the remaining rows, and for a padded batch of the largest size."""
    if not signature.is_batchable:
        yield Case("all inputs", samples)
        return
    for size in batch_sizes:
        yield Case(f"batch of {size}", take_rows(samples, slice(0, size)), size)
    largest = max(batch_sizes)
    for start in range(largest, count_rows(samples), largest):
        rows = take_rows(samples, slice(start, start + largest))
        yield Case(f"rows {start} to {start + count_rows(rows) - 1}", rows, largest)
    if padded and largest > 1:
        real = largest - 1
        inputs = _pad(take_rows(samples, slice(0, real)), largest)
        yield Case(f"{real} row(s) padded to {largest}", inputs, largest, real)


def _pad(inputs: Tensors, rows: int) -> Tensors:
    """Repeat the last row, as servers do. A real row is safe for models that divide by its norm."""
    last = {name: np.repeat(value[-1:], rows - len(value), axis=0) for name, value in inputs.items()}
    return {name: np.concatenate([value, last[name]]) for name, value in inputs.items()}


def _take_real(tensors: Tensors, rows: int | None) -> Tensors:
    return tensors if rows is None else take_rows(tensors, slice(0, rows))


def _run(model: Runnable, signature: Signature, case: Case, way: str) -> Tensors:
    import tensorflow as tf

    try:
        return model.run(signature, case.inputs)
    except tf.errors.OpError as error:
        raise ParityFailed(f"{signature.name}, {case.name}, loaded by {way}: {reason_of(error)}") from error


def _failure(signature: Signature, result: ParityResult, tolerance: Tolerance) -> ParityFailed:
    """Return an error that names the first failed comparison and their number, with all comparisons in the details."""
    first, largest = result.failed[0], result.max_abs_difference
    return ParityFailed(
        f"{signature.name}, {first.where}: {first.difference.beyond}. The tolerance is {tolerance} (--atol, --rtol). "
        f"{len(result.failed)} of {len(result.comparisons)} comparisons exceed it",
        max_abs_difference=largest if np.isfinite(largest) else None,
        atol=tolerance.atol,
        rtol=tolerance.rtol,
        parity={signature.name: result.to_json()},
    )
