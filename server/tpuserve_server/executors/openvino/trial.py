"""Trial of OpenVINO against TensorFlow: the same outputs, and in less time, for generated inputs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.types import Array, Signature, Tensors, TensorSpec

# A run of the signature with all of its outputs.
Run: TypeAlias = Callable[[Tensors], Tensors]

# Batch sizes of a version that states none.
_SIZES: Final = (1, 8)
# Largest number of sizes in a trial, and limits of its rounds.
_MOST_SIZES: Final = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 12
_BUDGET_S: Final = 2.0
# OpenVINO must be faster by this factor. A smaller gain may be due to the noise of the trial.
LEAST_GAIN: Final = 1.1


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed difference of an element: `atol + rtol * |expected|`."""

    atol: float
    rtol: float


def trial_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes to try, with the smallest and the largest."""
    sizes = sorted(batch_sizes) or list(_SIZES)
    if len(sizes) <= _MOST_SIZES:
        return tuple(sizes)
    places = np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int)
    return tuple(sizes[place] for place in places)


def generate_inputs(signature: Signature, rows: int) -> Tensors:
    """Return `rows` rows of random numbers, the same at each call. Only first dimensions may be free."""
    random = np.random.default_rng(rows)
    return {name: _generate(spec, rows, random) for name, spec in signature.inputs.items()}


def _generate(spec: TensorSpec, rows: int, random: np.random.Generator) -> Array:
    shape = tuple(rows if size is None else size for size in spec.shape or ())
    if spec.dtype.kind == "f":
        # 0-d as well: standard_normal returns a Python number for an empty shape.
        return np.asarray(random.standard_normal(shape), spec.dtype)
    if spec.dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), spec.dtype)
    return np.asarray(random.integers(0, np.iinfo(spec.dtype).max, shape, endpoint=True), spec.dtype)


def check_outputs(expected: Tensors, received: Tensors, tolerance: Tolerance, rows: int) -> None:
    """Compare OpenVINO's outputs with TensorFlow's.

    Raises:
        FailedPrecondition: an output has another shape or dtype, or an element differs by more than the tolerance.
    """
    for name, want in expected.items():
        got = received[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise FailedPrecondition(
                f"its output '{name}' is {got.dtype.name} {list(got.shape)} instead of {want.dtype.name} "
                f"{list(want.shape)} for {rows} rows"
            )
        if want.dtype.kind != "f":
            if not np.array_equal(want, got):
                raise FailedPrecondition(f"its output '{name}' differs for {rows} rows")
        elif not np.allclose(got, want, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True):
            worst = float(np.nanmax(np.abs(got.astype(np.float64) - want)))
            raise FailedPrecondition(
                f"its output '{name}' differs by up to {worst:.2g} for {rows} rows; the tolerance is "
                f"{tolerance.atol:g} + {tolerance.rtol:g} * |expected|"
            )


def measure_gain(tensorflow: Run, openvino: Run, samples: Sequence[tuple[int, Tensors]]) -> float:
    """Return TensorFlow's time a row over OpenVINO's, averaged over the samples of (rows, inputs). Blocks for seconds.

    Both run in turns, and the shortest time of each counts, because other work of the machine only lengthens times.
    """
    least_s = {(run, rows): float("inf") for run in (tensorflow, openvino) for rows, _ in samples}
    started_s = time.monotonic()
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() - started_s > _BUDGET_S:
            break
        for rows, inputs in samples:
            for run in (tensorflow, openvino):
                least_s[run, rows] = min(least_s[run, rows], _time(run, inputs))
    cost_s = {run: sum(least_s[run, rows] / max(rows, 1) for rows, _ in samples) for run in (tensorflow, openvino)}
    return cost_s[tensorflow] / cost_s[openvino]


def _time(run: Run, inputs: Tensors) -> float:
    started_s = time.perf_counter()
    run(inputs)
    return time.perf_counter() - started_s
