"""Judge generated series by the rules of one environment's load tester, and print the counts of the verdicts.

`PYTHON generated.py ROW TRIALS`: a row of the table of `loadtest truth`, or `power CONDITIONS` for the smallest changes
that a comparison finds, where the conditions of a round have this standard deviation. The file runs in the environment
that it judges, which may be older, and therefore imports the load tester alone.
"""

import inspect
import json
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.soak import judge_soak
from tpuserve_loadtests.measurement.measured import Measured, Segments
from tpuserve_loadtests.measurement.recorder import Recorder

LEAST_EFFECT: Final = 0.05
_RATE_PER_S: Final = 200.0
# The defaults of `compare`: both sides take two minutes.
_ROUNDS: Final = 10
_ROUND_S: Final = 6.0
# Standard deviation of the conditions of a round, which differ between the sides.
_ROUND_CONDITIONS: Final = 0.04
# A segment of a soak, and the standard deviation of its conditions, which are correlated with those before.
_SEGMENTS: Final = 48
_SEGMENT_S: Final = 75.0
_SEGMENT_REQUESTS: Final = 400
_CONDITIONS: Final = 0.02
_CORRELATION: Final = 0.5

Floats = NDArray[np.float64]
Change = Callable[[Floats, np.random.Generator], Floats]


def service_s(count: int, random: np.random.Generator) -> Floats:
    """Return latencies of a server with three classes of requests: most, a middle one of 30 %, and a tail of 2 %."""
    kind = random.random(count)
    base = np.where(kind < 0.68, 0.010, np.where(kind < 0.98, 0.020, 0.060))
    found: Floats = base * random.lognormal(0.0, 0.10, count)
    return found


def _unchanged(latencies: Floats, random: np.random.Generator) -> Floats:
    return latencies


def _middle(factor: float) -> Change:
    def change(latencies: Floats, random: np.random.Generator) -> Floats:
        return np.where((latencies > 0.0142) & (latencies < 0.035), latencies * factor, latencies)

    return change


def _rare(latencies: Floats, random: np.random.Generator) -> Floats:
    return latencies + 5.0 * (random.random(len(latencies)) < 0.005)


# The middle class is 30 % of the requests and 40 % of the time: +72 % of it are +29 % of the mean.
CHANGES: Final[dict[str, Change]] = {
    "mean +29 %": _middle(1.72),
    "middle class +88 %": _middle(1.88),
    "0.5 % at +5 s": _rare,
}


def _class(low_s: float, high_s: float) -> Callable[[float], Change]:
    """Return the change of the requests between two latencies by a share."""
    return lambda share: (
        lambda latencies, random: latencies * np.where((latencies > low_s) & (latencies < high_s), 1 + share, 1.0)
    )


# Changes of the class of requests at the figure, or of all, by the smallest share that a comparison may find.
_POWERS: Final = {
    "p50": _class(0.0, 0.0142),
    "p90": _class(0.0142, 0.035),
    "p99": _class(0.035, np.inf),
    "mean": _class(0.0, np.inf),
}
_SHARES: Final = (0.02, 0.03, 0.05, 0.06, 0.07, 0.08, 0.10, 0.12, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50, 0.70, 1.0, 2.0)
_ERRORS: Final = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05)


def recorded(latencies: Floats, failed: NDArray[np.bool_], load: Load, random: np.random.Generator) -> Measured:
    """Return a run whose requests have these latencies, in seconds. `failed` marks requests without an answer."""
    due = np.sort(random.random(len(latencies))) * load.seconds
    recorder = Recorder(("grpc",), load)
    for due_s, latency_s, is_failed in zip(due.tolist(), latencies.tolist(), failed.tolist(), strict=True):
        recorder.record("grpc", due_s, due_s + latency_s, "failed" if is_failed else None)
    return Measured(load, recorder, load.seconds, (0.1,))


def _load(seconds: float, rate_per_s: float) -> Load:
    return Load(seconds, 0.0, profile=RateProfile.parse(f"{rate_per_s:g}", seconds))


def accepted(function: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401  options of several versions
    """Call a function with those options that its version knows."""
    return function(
        **{name: value for name, value in options.items() if name in inspect.signature(function).parameters}
    )


def compared(
    change: Change,
    random: np.random.Generator,
    *,
    rounds: int = _ROUNDS,
    errors: float = 0.0,
    slow_round: float = 1.0,
    conditions: float = _ROUND_CONDITIONS,
) -> Any:  # noqa: ANN401  an outcome of several versions
    """Return the outcome of a comparison whose B has a change."""
    load, pairs = _load(_ROUND_S, _RATE_PER_S), []
    for number in range(rounds):
        sides = []
        for side in range(2):
            count = random.poisson(_RATE_PER_S * _ROUND_S * (slow_round if side and not number % 2 else 1.0))
            latencies = service_s(count, random) * random.lognormal(0.0, conditions)
            latencies = change(latencies, random) if side else latencies
            failed = random.random(count) < (errors if side else 0.0)
            sides.append(recorded(latencies, failed, load, random))
        pairs.append((sides[0], sides[1]))
    return accepted(
        judge_comparison,
        names=("A", "B"),
        rounds=pairs,
        least_effect=LEAST_EFFECT,
        strict=False,
        fail_if_unclear=True,
    )


def _verdict(outcome: Any) -> str:  # noqa: ANN401
    return "too few" if outcome.comparison is None else str(outcome.comparison.verdict)


def _comparison(row: str, random: np.random.Generator) -> str:
    if row.startswith("equal"):
        return _verdict(compared(_unchanged, random, rounds=3 if "three" in row else _ROUNDS))
    if row == "a slow round of B's machine":
        figures = compared(_unchanged, random, slow_round=0.85).comparison.figures
        judged = {figure.name for figure in figures if str(figure.verdict) in ("worse", "better", "unclear")}
        return "rate" if "rate" in judged else "not judged"
    return _verdict(compared(CHANGES[row], random))


def _factors(row: str, number: int) -> tuple[float, float]:
    """Return the factors of all latencies of a segment, and of its slowest ones."""
    every = {
        "step x2 at half time": 2.0 if number >= _SEGMENTS // 2 else 1.0,
        "x5 in the last sixth": 5.0 if number >= _SEGMENTS * 5 // 6 else 1.0,
        "x3 for three segments": 3.0 if 20 <= number < 23 else 1.0,
    }
    return every.get(row, 1.0), 10.0 if row == "p99 x10 in every fourth" and number % 4 == 3 else 1.0


def soaked(row: str, random: np.random.Generator) -> Any:  # noqa: ANN401  an outcome of several versions
    """Return the outcome of a soak of an hour whose latencies follow the row."""
    load, segments, condition = _load(_SEGMENT_S, _SEGMENT_REQUESTS / _SEGMENT_S), Segments(), 0.0
    for number in range(_SEGMENTS):
        condition = _CORRELATION * condition + random.normal(0.0, _CONDITIONS * (1 - _CORRELATION**2) ** 0.5)
        count = random.poisson(_SEGMENT_REQUESTS)
        latencies = service_s(count, random) * np.exp(condition)
        every, slowest = _factors(row, number)
        latencies = every * np.where(latencies >= np.quantile(latencies, 0.985), slowest, 1.0) * latencies
        segments.add(recorded(latencies, np.zeros(count, np.bool_), load, random), 1e8 * (1 + 0.001 * random.normal()))
    total = segments.total
    assert total is not None
    run = accepted(judge_run, measured=total, model="m", rows=1.0, strict=False)
    return accepted(judge_soak, run=run, segments=segments, planned=_SEGMENTS, least_effect=LEAST_EFFECT)


def powers(trials: int, conditions: float) -> dict[str, float | None]:
    """Return the smallest changes that comparisons of two minutes find in 9 of 10 trials, or None beyond the scale."""

    def finds(figure: str, share: float) -> bool:
        found = 0
        for seed in range(trials):
            random = np.random.default_rng(seed)
            if figure == "errors":
                outcome = compared(_unchanged, random, errors=share, conditions=conditions)
            else:
                outcome = compared(_POWERS[figure](share), random, conditions=conditions)
            found += _verdict(outcome) in ("worse", "failing")
        return found >= 0.9 * trials

    scales = {**dict.fromkeys(_POWERS, _SHARES), "errors": _ERRORS}
    found = {}
    for figure, scale in scales.items():
        at = bisect_left(scale, True, key=partial(finds, figure))
        found[figure] = scale[at] if at < len(scale) else None
    return found


def main() -> None:
    """Judge a row in several trials."""
    row, trials = sys.argv[1], int(sys.argv[2])
    if row.startswith("power "):
        print(json.dumps(powers(trials, float(row.split()[1]))))
        return
    kind, _, name = row.partition(", generated: ")
    seeds = (np.random.default_rng(seed) for seed in range(trials))
    if kind == "soak":
        verdicts = Counter(str(soaked(name, random).verdict) for random in seeds)
    else:
        verdicts = Counter(_comparison(name, random) for random in seeds)
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
