"""Runs of a recorder, with random instead of measured latencies."""

import numpy as np

from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Delivery, Recorder

STARTED_AT = 1_700_000_000.0


def open_load(rate_per_s: float, seconds: float = 8.0, warm_up_s: float = 1.0) -> Load:
    return Load(seconds, warm_up_s, profile=RateProfile.parse(f"{rate_per_s:g}", seconds), process="constant")


def recorded_run(
    load: Load,
    median_ms: float = 4.0,
    *,
    lines: tuple[str, ...] = ("grpc", "rest"),
    failures: dict[str, int] | None = None,
    wrong: int = 0,
    unparsed: int = 0,
    seconds: float | None = None,
    seed: int = 0,
) -> Measured:
    """Return a run with log-normal latencies, stopped after `seconds` if given.

    `failures` counts failures at the end by message. `wrong` adds failed comparisons, and then all responses are
    compared. The last `unparsed` responses were not parsed in full.
    """
    random = np.random.default_rng(seed)
    recorder = Recorder(lines, load)
    span_s = load.seconds if seconds is None else seconds
    due_s = np.array(list(load.instants()) if load.is_open else [])
    due_s = due_s[due_s < load.warm_up_s + span_s]
    latencies_s = random.lognormal(np.log(median_ms / 1000), 0.5, len(due_s))
    for number, (due, latency) in enumerate(zip(due_s.tolist(), latencies_s.tolist(), strict=True)):
        recorder.record_lag(due, 0.0002)
        left = len(due_s) - 1 - number
        delivery = Delivery(compared=0 < wrong <= left, unparsed=left < unparsed)
        recorder.record(lines[number % len(lines)], due, due + latency, None, delivery)
    for number, message in enumerate(message for message, count in (failures or {}).items() for _ in range(count)):
        recorder.record(lines[0], due_s[-1 - number], due_s[-1 - number], message)
    for due in due_s[len(due_s) - wrong :].tolist():
        recorder.record(lines[0], due, due, "wrong response", Delivery(compared=True, wrong=True))
    stopped = "" if seconds is None else "interrupted"
    return Measured(load, recorder, span_s, (0.2,), stopped, STARTED_AT)
