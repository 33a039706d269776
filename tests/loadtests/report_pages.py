"""The report pages of every command, from invented runs."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.loadtests.metrics_pages import seen_server
from tests.loadtests.recorded_runs import STARTED_AT, open_load, recorded_run
from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.difference import Compared, Parity
from tpuserve_loadtests.golden.tolerance import Allowed
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome, judge_comparison
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.judgement.soak import SoakOutcome, judge_soak
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured, Segments
from tpuserve_loadtests.mlperf.report import mlperf_report
from tpuserve_loadtests.mlperf.rules import MlperfOutcome, Scenario, judge_mlperf
from tpuserve_loadtests.monitoring.energy import Energy
from tpuserve_loadtests.monitoring.server_side import Moment, Phase, ServerSide
from tpuserve_loadtests.monitoring.watched import Watched, latency_parts
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.reports.rollout import rollout_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.soak import soak_report
from tpuserve_loadtests.reports.sweep import sweep_report
from tpuserve_loadtests.rollout.evaluations import ComparedMetric, MeasuredValue
from tpuserve_loadtests.rollout.moves import Standing
from tpuserve_loadtests.rollout.procedure import Findings, RolloutOutcome, Step, StepState
from tpuserve_loadtests.rollout.procedure import Outcome as Ended
from tpuserve_loadtests.statistics.comparison import Comparison, Figure, Ratio, Verdict

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
SETTINGS = {"Addresses": "localhost:8500", "Command": f"tpuserve loadtest run {HOSTILE}"}


def page(report: Report) -> str:
    return render_page(report.page())


def gates(*texts: str) -> tuple[Threshold, ...]:
    return tuple(map(Threshold.parse, texts))


def page_of_a_run(measured: Measured | None = None, *texts: str, strict: bool = True) -> str:
    measured = recorded_run(open_load(300), failures={HOSTILE: 7}) if measured is None else measured
    return page(run_report(judge_run(measured, Rules(gates(*texts), strict=strict), model=HOSTILE, rows=1), SETTINGS))


def page_of_a_watched_run() -> str:
    """Return the page of a server with metrics. No request waited in its first second."""
    moments = [
        Moment(
            float(second),
            1.0,
            300.0,
            0.4 * second or None,
            2.5 + second / 9,
            3.2,
            0.2,
            0.8,
            0.7,
            4e8 + 1e6 * second,
            {},
            0.0,
        )
        for second in range(8)
    ]
    phases = (Phase("request", 2400, 3.4, 3.1, 9.0, 0.1), Phase("queue wait", 2400, 0.5, 0.4, 2.0, 0.1))
    server = ServerSide(
        phases=phases,
        execution_ms=2.4,
        batch_rows=3.2,
        padding_share=0.2,
        executing=0.8,
        answers={"OK": 2400},
        refused={HOSTILE: 3},
        cached_share=0.0,
        cpu_cores=0.7,
        memory_bytes=4e8,
        peak_memory_bytes=4.1e8,
        busy={HOSTILE: 0.61},
        timeline=tuple(moments),
    )
    measured = recorded_run(open_load(300))
    watched = Watched((measured,), (), server, latency_parts([measured], server), "")
    return page(run_report(replace(judge_run(measured, model="digits", rows=1), watched=watched), SETTINGS))


def page_of_a_long_run_that_was_stopped() -> str:
    """Return a page with hours on the axis, a long line name, a slow tail, and periods without responses."""
    load = open_load(0.2, seconds=6 * 3600)
    lines = ("text_classifier_with_a_long_name.v2@canary over gRPC", "rest")
    return page_of_a_run(recorded_run(load, 900, lines=lines, seconds=3.2 * 3600), "p99>10ms", "max>90s")


def page_of_a_sweep() -> str:
    steps = [
        judge_run(
            recorded_run(open_load(rate), 2 + rate / 100),
            model="digits",
            rows=4,
            seen=replace(
                seen_server(8 * rate, batch=1 + rate // 100, queue_s=rate / 1e5, latency_s=0.002 + rate / 8e4),
                energy=Energy(8.0, {"package": 320.0 + rate, "dram": 80.0}),
            ),
            price=Price(1.2),
        )
        for rate in (25, 50, 100, 200, 300, 400, 500, 600)
    ]
    return page(sweep_report(steps, SETTINGS))


def page_of_a_search() -> str:
    rates = {100: True, 200: True, 400: False, 283: True, 336: False, 309: True}
    tries = [
        (
            Probe(rate, Outcome.HOLDS if holds else Outcome.FAILS, f"p99<=20ms: 3 of {8 * rate:,} late"),
            recorded_run(open_load(rate), 2 + (rate / 150) ** 2),
        )
        for rate, holds in rates.items()
    ]
    found = Found(tries[5][0], tries[4][0])
    watched_tries = [
        (each, Watched.of(measured, seen_server(300, batch=1 + int(each.rate_per_s // 100))))
        for each, measured in tries
    ]
    searched = Searched(found, watched_tries, Watched.of(tries[0][1], seen_server(300)))
    return page(search_report(HOSTILE, searched, gates("p99<=20ms", "error_rate<=1%"), SETTINGS))


def page_of_a_search_that_one_user_ended() -> str:
    """Return the page of a search whose single user missed the objective, so that it tried no rate."""
    alone = Watched.of(recorded_run(open_load(25), 40), seen_server(300))
    searched = Searched(Found(None, None), [], alone, f"p99 of 128 ms; {HOSTILE}")
    return page(search_report(HOSTILE, searched, gates("p99<=20ms"), SETTINGS))


def comparison(slower: float) -> ComparisonOutcome:
    rounds = [
        (
            recorded_run(open_load(100), 4, seed=2 * number),
            recorded_run(open_load(100), 4 * slower, seed=2 * number + 1),
        )
        for number in range(4)
    ]
    a, b = (tuple(pair[side] for pair in rounds) for side in range(2))
    sides = (
        Watched.together([Watched.of(measured, seen_server(800)) for measured in a]),
        Watched.together([Watched.of(measured, seen_server(800, run_s=0.003, latency_s=0.005)) for measured in b]),
    )
    return judge_comparison(("stable", HOSTILE), rounds, sides=sides)


def page_of_a_comparison(slower: float = 1.3) -> str:
    return page(compare_report("digits", comparison(slower), SETTINGS))


def page_of_a_wild_comparison() -> str:
    """Return a page where some intervals extend beyond the chart."""
    ratios = [("p50", 1.2, 0.9, 40.0), ("p99", 0.8, 0.7, 1.1), ("p999", 1.1, 0.02, 9.0), ("rate", 7.5, 6.0, 8.0)]
    figures = tuple(
        Figure(name, Ratio(100.0, 100.0 * ratio, ratio, low, high), Verdict.UNCLEAR, scarce=True)
        for name, ratio, low, high in ratios
    )
    wild = replace(comparison(1.0), comparison=Comparison(figures, 0.05))
    return page(compare_report("digits", wild, SETTINGS))


def soak() -> SoakOutcome:
    """Return a soak whose memory grows and that stopped before its last segment."""
    segments = Segments()
    for number in range(24):
        measured = recorded_run(open_load(20), seed=number, failures={HOSTILE: number // 20})
        segments.add(measured, 4e8 * (1 + number / 50))
    assert segments.total is not None
    run = judge_run(segments.total, Rules(gates("error_rate>1%")), model="digits", rows=1)
    return judge_soak(run, segments, 25)


def page_of_a_soak() -> str:
    return page(soak_report(soak(), SETTINGS))


def rollout(outcome: Ended, exit_code: int, steps: Sequence[Step], findings: Findings) -> RolloutOutcome:
    live = 4 if outcome is Ended.PROMOTED else 3
    return RolloutOutcome(
        HOSTILE,
        3,
        4,
        outcome is Ended.PLANNED,
        outcome,
        exit_code,
        steps,
        {"canary": None, "stable": 3},
        [
            Standing("canary", "version 4" if live == 4 else "none", f"version {live}"),
            Standing("stable", f"version {live}", f"unknown ({HOSTILE})"),
        ],
        findings,
        STARTED_AT,
    )


AGREEING = (Compared("", "probabilities", 3.1e-3, Allowed(0.02, 0.02, f"bfloat16, from {HOSTILE}")),) * 32


def page_of_a_rollout() -> str:
    """Return the page of a rollout that fails only in the soak."""
    steps = [
        Step("parity", StepState.PASSED, "32 of 32 responses match", 0.0, 0.4),
        Step(
            "shadow",
            StepState.PASSED,
            "the new version is the same; ratios to the live version: p50 1.000 (0.982 to 1.013)",
            0.4,
            130.0,
        ),
        Step("label canary", StepState.DONE, "to version 4", 130.4, 0.1),
        Step("canary", StepState.PASSED, "6,000 requests, 0 failed, p99 7.31 ms", 130.5, 60.0),
        Step("label stable", StepState.DONE, "from version 3 to 4", 190.5, 0.1),
        Step("soak", StepState.FAILED, f"drifting: server's memory; {HOSTILE}", 190.6, 300.0),
        Step("labels back", StepState.DONE, "canary removed; stable to version 3", 490.6, 0.1),
    ]
    metrics = [
        ComparedMetric(HOSTILE, f"s/{HOSTILE}", *(MeasuredValue(one, ">=", HOSTILE, "ab", 450) for one in (0.5, 0.97)))
    ]
    canary = judge_run(recorded_run(open_load(100)), Rules(gates("p99>20ms")), model=HOSTILE, rows=1)
    findings = Findings(Parity(AGREEING), comparison(1.0), canary, soak(), metrics)
    return page(rollout_report(rollout(Ended.MOVED_BACK, 99, steps, findings), [], SETTINGS))


def page_of_a_plan() -> str:
    steps = [
        Step("parity", StepState.PASSED, "32 of 32 responses match", 0.0, 0.4),
        Step("shadow", StepState.PLANNED, "load both versions in turn, 6 rounds of 10 s each", 0.4, 0.0),
        Step("label canary", StepState.PLANNED, "to version 4", 0.4, 0.0),
    ]
    return page(rollout_report(rollout(Ended.PLANNED, 0, steps, Findings(Parity(AGREEING))), [], SETTINGS))


def page_of_a_refusal() -> str:
    steps = [Step("parity", StepState.FAILED, "30 of 32 responses differ", 0.0, 0.4)]
    parity = Parity((*AGREEING[:2], *(Compared(f"request {number}: {HOSTILE}") for number in range(2, 32))))
    return page(rollout_report(rollout(Ended.REFUSED, 99, steps, Findings(parity)), [], SETTINGS))


def page_of_a_scenario(scenario: Scenario = Scenario.SERVER, seconds: float = 8.0, failures: int = 2) -> str:
    """Return the page of the server scenario after a search, with some late requests."""
    tries = [
        (
            Probe(rate, Outcome.HOLDS if rate < 400 else Outcome.FAILS, "p99<=15ms"),
            recorded_run(open_load(rate), rate / 60),
        )
        for rate in (200, 400, 300)
    ]
    measured = recorded_run(open_load(60 if seconds > 60 else 300, seconds), failures={HOSTILE: failures})
    watched = Watched.of(measured, seen_server(300))
    if scenario is not Scenario.SERVER:
        outcome = MlperfOutcome(judge_mlperf(scenario, measured, 8), watched)
        return page(mlperf_report(HOSTILE, outcome, (), SETTINGS))
    watched_tries = [
        (probe, Watched.of(each, seen_server(300, batch=int(probe.rate_per_s // 100)))) for probe, each in tries
    ]
    alone = Watched.of(tries[0][1], seen_server(300))
    searched = Searched(Found(tries[2][0], tries[1][0]), watched_tries, alone)
    outcome = MlperfOutcome(judge_mlperf(scenario, measured, 1, 15), watched, searched=searched)
    return page(mlperf_report(HOSTILE, outcome, gates("p99<=15ms"), SETTINGS))


def page_of_nothing() -> str:
    """Return the page of a run that stopped before the first response."""
    return page_of_a_run(recorded_run(Load(10, users=4), lines=("grpc",), seconds=0.0))


_PAGES: dict[str, Callable[[], str]] = {
    "run": page_of_a_run,
    "watched": page_of_a_watched_run,
    "long": page_of_a_long_run_that_was_stopped,
    "sweep": page_of_a_sweep,
    "search": page_of_a_search,
    "search ended": page_of_a_search_that_one_user_ended,
    "compare": page_of_a_comparison,
    "wild": page_of_a_wild_comparison,
    "soak": page_of_a_soak,
    "mlperf": page_of_a_scenario,
    "rollout": page_of_a_rollout,
    "plan": page_of_a_plan,
    "refusal": page_of_a_refusal,
    "nothing": page_of_nothing,
}
# Several tests read each page, whose load takes longer than the test.
PAGES = {name: functools.cache(render) for name, render in _PAGES.items()}
