"""The verdict on a run in words, with its checks."""

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.run import UNSETTLED, RunOutcome
from tpuserve_loadtests.judgement.threshold import GateResult
from tpuserve_loadtests.rendering.parts import Headline, Row, Table
from tpuserve_loadtests.rendering.units import milliseconds, per_second, percent
from tpuserve_loadtests.reports.errors import most_frequent

NOT_TO_BE_TRUSTED = "Inconclusive: the load generator was the limit"


def run_headline(outcome: RunOutcome) -> Headline:
    """Return the verdict: passed, failed, or untrusted. The first reason is the cause."""
    measured = outcome.measured
    stopped = [measured.stopped] if measured.stopped else []
    limits = list(outcome.generator.limits)
    notes = [note for note in (*outcome.extra_notes, outcome.watched.note if outcome.watched.server else "") if note]
    notes += [UNSETTLED] if measured.stable is False else []
    if outcome.exit_code == EXIT_GENERATOR:
        return Headline("warn", NOT_TO_BE_TRUSTED, [*limits, *stopped, *notes])
    if outcome.exit_code == EXIT_GATE:
        failed = [_failed_gate(result, outcome) for result in outcome.gates if result.failed]
        words = "Failed the gate" if len(outcome.gates) == 1 else f"Failed {len(failed)} of {len(outcome.gates)} gates"
        return Headline("bad", words, [*failed, *stopped, *limits, *notes])
    if outcome.exit_code:
        return Headline("bad", _failed(outcome), [*_frequent(outcome), *stopped, *limits, *notes])
    passed = "Passed the gate" if len(outcome.gates) == 1 else f"Passed all {len(outcome.gates)} gates"
    words = passed if outcome.gates else "All requests succeeded"
    if not outcome.generator.trusted:
        return Headline("warn", f"{words}, but the load generator was the limit", [*limits, *stopped, *notes])
    return Headline("good", words, [_figures(outcome), *stopped, *notes])


def _failed_gate(result: GateResult, outcome: RunOutcome) -> str:
    """Describe a gate that failed, with the largest part of the latency or the most frequent error."""
    words = f"{result.gate} is true, at {result.gate.show(result.figure)}"
    if result.figure is None:
        return f"{result.gate} has no figure: {result.gate.show(None)}"
    if result.gate.is_latency and outcome.watched.parts:
        part = max(outcome.watched.parts, key=lambda part: part.share)
        return f"{words}, and {percent(round(part.share, 2))} of the mean latency is {part.name}"
    if result.gate.metric in ("error_rate", "wrong", "wrong_rate"):
        return ", ".join([words, *_frequent(outcome)])
    return words


def _frequent(outcome: RunOutcome) -> list[str]:
    errors = outcome.measured.recorder.errors()
    return [most_frequent(errors[0].message)] if errors else []


def _figures(outcome: RunOutcome) -> str:
    total = outcome.total
    failures = f", {total.failures:,} failed" if total.failures else ""
    p99 = milliseconds(total.p99_ms)
    return f"{counted(total.requests, 'request')}{failures}, {per_second(total.rate_per_s)}, p99 {p99}"


def _failed(outcome: RunOutcome) -> str:
    total = outcome.total
    if not total.requests:
        return "No request was measured"
    if not outcome.all_completed:
        return f"Failed: {total.failures:,} of {counted(total.requests, 'request')}"
    return f"Wrong: {total.wrong:,} of {counted(total.checked, 'compared response')}"


def checks_table(outcome: RunOutcome) -> Table:
    """Return a table of each gate and of the checks of every run."""
    generator, measured = outcome.generator, outcome.measured
    cores = ", ".join(f"{used:.2f}" for used in generator.cores)
    lag = "" if generator.lag_p99_ms is None else f", p99 of the send delay {milliseconds(generator.lag_p99_ms)}"
    settled = {True: "✓ yes", False: "no", None: "too short"}[measured.stable]
    rows = [
        *(_check(str(result.gate), result.gate.show(result.figure), not result.failed) for result in outcome.gates),
        _check(
            "Request failures",
            f"{percent(measured.error_rate)} failed" if measured.total.requests else "no request was sent",
            outcome.all_completed,
        ),
        *_right(outcome),
        Row(
            "Load generator",
            [f"{cores} of 1 core{lag}", "✓ kept up" if generator.trusted else "✗ the limit"],
            good=generator.trusted,
        ),
        Row("Stability", ["median latency and rate within 10 %", settled], good=measured.stable or None),
    ]
    return Table("Checks", ["check", "figure", "outcome"], rows)


def _check(name: str, figure: str, passed: bool) -> Row:
    return Row(name, [figure, "✓ passed" if passed else "✗ failed"], good=passed)


def _right(outcome: RunOutcome) -> list[Row]:
    """Return the row for golden answers, if any response was checked."""
    total = outcome.total
    if not total.checked:
        return []
    return [
        _check("Golden responses", f"{total.wrong:,} of {total.checked:,} compared were wrong", outcome.all_correct)
    ]
