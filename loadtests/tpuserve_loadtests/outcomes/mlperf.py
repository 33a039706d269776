"""A run by MLPerf Inference's rules: laid out as LoadGen's summary, for programs, and as cases for CI systems."""

from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from tpuserve_loadtests.exit_codes import EXIT_GENERATOR
from tpuserve_loadtests.judgement.mlperf import GENERATOR as KEPT_UP
from tpuserve_loadtests.judgement.mlperf import LEAST_DURATION_S, Result, Scenario, estimate_ns
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.run import PLAIN_WIDTH
from tpuserve_loadtests.rendering.junit import GENERATOR, Case
from tpuserve_loadtests.reports.server_report import print_server
from tpuserve_loadtests.searching import Found
from tpuserve_loadtests.server_side.watched import Watched

DISCLAIMER: Final = "By MLPerf Inference's rules. No submission, and not verified by MLCommons Association."
_TO_THE_END: Final = "it runs to its end"
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


def print_mlperf(result: Result, watched: Watched, model: str, console: Console) -> None:
    """The summary, and below it what the server said of itself meanwhile."""
    (measured,) = watched.runs
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(escape(mlperf_text(result, measured, model)), highlight=False, soft_wrap=True)
    if watched.server is not None:
        console.print()
    print_server(watched, console)
    if watched.note:
        console.print(f"  note: {escape(watched.note)}", highlight=False, soft_wrap=True)


def mlperf_document(
    result: Result, watched: Watched, model: str, search: dict[str, Any] | None = None
) -> dict[str, Any]:  # for JSON
    """The same for programs. `metric` is in nanoseconds, or samples (offline) or queries (server) a second.

    `search`: the document of the one before it, if there was one.
    """
    (measured,) = watched.runs
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
        **watched.as_document(),
        "notes": [watched.note] if watched.note else [],
        "search": search,
    }


def mlperf_search_document(model: str, search: dict[str, Any]) -> dict[str, Any]:  # for JSON
    """For the server scenario of which no rate was found that could be run: there is no result."""
    scenario = Scenario.SERVER
    return {"disclaimer": DISCLAIMER, "model": model, "scenario": scenario, "result": None, "search": search}


def mlperf_cases(result: Result, measured: Measured, *, quick: bool) -> list[Case]:
    """For the generator, for the run, and for the scenario's verdict. `quick`: the duration is no part of it."""
    broken = {each.name: each.detail for each in result.constraints if not each.satisfied}
    is_kept = result.valid_but_for_duration if quick else result.valid
    why = "\n".join(f"{name}: no, {detail}" for name, detail in broken.items())
    return [
        Case(GENERATOR, broken.get(KEPT_UP, "")),
        Case(_TO_THE_END, measured.stopped),
        Case(_verdict(result.rules.scenario), "" if is_kept else f"INVALID: {why}"),
    ]


def mlperf_search_cases(found: Found | None, problem: str, exit_code: int, statement: str) -> list[Case]:
    """The same of a search that found no rate that could be run."""
    limited = exit_code == EXIT_GENERATOR
    ended = found is not None
    return [
        Case(GENERATOR, problem if limited else ""),
        Case(_TO_THE_END, "" if ended or limited else problem, problem if limited else ""),
        Case(_verdict(Scenario.SERVER), f"INVALID: {statement}" if ended else "", "" if ended else statement),
    ]


def _verdict(scenario: Scenario) -> str:
    return f"{scenario} is VALID"


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
