"""What a run comes to, in words, and what that rests on."""

from tpuserve_loadtests.exit_codes import EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.outcomes.run import UNSETTLED, RunReport
from tpuserve_loadtests.rendering.markup import Markup
from tpuserve_loadtests.rendering.sections import Headline, Row, show_table
from tpuserve_loadtests.report_model.units import milliseconds, percent

NOT_TO_BE_TRUSTED = "Not to be trusted: the load generator was the limit"


def run_headline(report: RunReport) -> Headline:
    """Passed, failed, or not to be trusted."""
    measured = report.measured
    notes = [note for note in (measured.stopped, *report.generator.limits) if note]
    notes += [note for note in (*report.told, report.watched.note if report.watched.server else "") if note]
    notes += [UNSETTLED] if measured.stable is False else []
    if report.exit_code == EXIT_GENERATOR:
        return Headline("warn", NOT_TO_BE_TRUSTED, notes)
    if report.exit_code == EXIT_GATE:
        failed = [str(result) for result in report.gates if result.failed]
        words = "Failed the gate" if len(report.gates) == 1 else f"Failed {len(failed)} of {len(report.gates)} gates"
        return Headline("bad", words, [*failed, *notes])
    if report.exit_code:
        words = _failed(report)
        return Headline("bad", words, notes)
    passed = "Passed the gate" if len(report.gates) == 1 else f"Passed all {len(report.gates)} gates"
    words = passed if report.gates else "All requests were answered"
    if not report.generator.trusted:
        return Headline("warn", f"{words}, but the load generator was the limit", notes)
    return Headline("good", words, notes)


def _failed(report: RunReport) -> str:
    total = report.total
    if not total.requests:
        return "Nothing was measured"
    if not report.answered:
        return f"Failed: {total.failures:,} of {total.requests:,} requests"
    return f"Wrong: {total.wrong:,} of {total.checked:,} answers that were compared"


def show_checks(report: RunReport) -> Markup:
    """Each gate, and what every run is asked."""
    generator, measured = report.generator, report.measured
    cores = ", ".join(f"{used:.2f}" for used in generator.cores)
    lag = "" if generator.lag_p99_ms is None else f", p99 of lateness {milliseconds(generator.lag_p99_ms)}"
    settled = {True: "✓ yes", False: "no", None: "too short to tell"}[measured.stable]
    rows = [
        *(_check(str(result.gate), result.gate.show(result.figure), not result.failed) for result in report.gates),
        _check(
            "requests are answered",
            f"{percent(measured.error_rate)} failed" if measured.total.requests else "no request was made",
            report.answered,
        ),
        *_right(report),
        Row(
            "the load generator keeps up",
            [f"{cores} of 1 core{lag}", "✓ kept up" if generator.trusted else "✗ the limit"],
            good=generator.trusted,
        ),
        Row("the run has settled", ["median latency and rate within 10 %", settled], good=measured.stable or None),
    ]
    return show_table("What was asked", ["check", "figure", "outcome"], rows)


def _check(name: str, figure: str, passed: bool) -> Row:
    return Row(name, [figure, "✓ passed" if passed else "✗ failed"], good=passed)


def _right(report: RunReport) -> list[Row]:
    """Nothing where no answer was compared with a golden one."""
    total = report.total
    if not total.checked:
        return []
    return [_check("answers are right", f"{total.wrong:,} of {total.checked:,} compared were wrong", report.right)]
