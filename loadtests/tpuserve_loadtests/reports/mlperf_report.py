"""A run by MLPerf Inference's rules, laid out as LoadGen's summary."""

from dataclasses import asdict
from typing import Any, Final

from tpuserve_loadtests.judgement.mlperf import LEAST_DURATION_S, Result, Scenario, estimate_ns
from tpuserve_loadtests.measurement.measured import Measured

DISCLAIMER: Final = "By MLPerf Inference's rules. No submission, and not verified by MLCommons Association."
_RULE: Final = "=" * 48
_PERCENTILES: Final = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)


def mlperf_text(result: Result, measured: Measured, model: str) -> str:
    """The summary."""
    lines = [_RULE, DISCLAIMER, _RULE, f"Model    : {model}", f"Scenario : {result.rules.scenario}"]
    lines += [_metric_line(result), f"Result is : {'VALID' if result.valid else 'INVALID'}"]
    for each in result.constraints:
        lines.append(f"  {each.name} : {'Yes' if each.satisfied else 'NO'} ({each.detail})")
    if not result.valid and result.valid_but_for_duration:
        lines.append(f"  Too short for the rules, which ask for {LEAST_DURATION_S:g} s; all else is kept")
    if measured.stopped:
        lines.append(f"  It was {measured.stopped}")
    lines += ["", "Additional stats", *_stats(result, measured)]
    return "\n".join(lines)


def mlperf_document(result: Result, measured: Measured, model: str) -> dict[str, Any]:  # for JSON
    """The same for programs. `metric` is in nanoseconds, or samples (offline) or queries (server) a second."""
    return {
        "disclaimer": DISCLAIMER,
        "model": model,
        "scenario": result.rules.scenario,
        "load": str(measured.load),
        "result": "VALID" if result.valid else "INVALID",
        "too_short_for_the_rules": not result.valid and result.valid_but_for_duration,
        "metric": result.metric,
        "metric_is": _metric_name(result),
        "queries": measured.total.requests,
        "samples": result.samples,
        "duration_s": measured.span_s,
        "constraints": [asdict(each) for each in result.constraints],
        "stopped": measured.stopped,
        "latency_ns": {f"{percent:g}": _ns(measured, percent) for percent in _PERCENTILES},
    }


def _metric_name(result: Result) -> str:
    match result.rules.scenario:
        case Scenario.SERVER:
            return "Scheduled queries per second"
        case Scenario.OFFLINE:
            return "Samples per second"
        case _:
            return f"Early stopping {result.rules.percentile:g}th percentile estimate (ns)"


def _metric_line(result: Result) -> str:
    value = "too few queries to tell" if result.metric is None else f"{result.metric:,.2f}"
    if result.metric is not None and result.rules.scenario in (Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM):
        value = f"{result.metric:.0f}"
    return f"{_metric_name(result)} : {value}"


def _stats(result: Result, measured: Measured) -> list[str]:
    lines = [f"  Queries : {measured.total.requests:,}, samples : {result.samples:,.0f}"]
    if result.rules.scenario is Scenario.SERVER:
        lines.append(f"  Completed queries per second : {measured.rate_per_s:,.2f}")
    if result.rules.scenario is Scenario.SINGLE_STREAM and (estimate := estimate_ns(measured, 99.0)) is not None:
        lines.append(f"  Early stopping 99th percentile estimate (ns) : {estimate}")
    found = {percent: _ns(measured, percent) for percent in _PERCENTILES}
    lines += [f"  {percent:5.2f} percentile latency (ns) : {value}" for percent, value in found.items() if value]
    return lines


def _ns(measured: Measured, percent: float) -> int | None:
    found_us = measured.total.histogram.percentile_us(percent)
    return None if found_us is None else found_us * 1000
