"""`tpuserve loadtest sweep`: one run at each of several loads, which makes a latency-throughput curve."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tpuserve_loadtests.cli.asked import find_asked
from tpuserve_loadtests.cli.files import Files
from tpuserve_loadtests.cli.loads import closed_load, open_load, refuse_both, run_load
from tpuserve_loadtests.cli.options import (
    address_options,
    file_options,
    generator_options,
    open_options,
    request_options,
    scenario_option,
    time_options,
    version_options,
)
from tpuserve_loadtests.cli.said import refuse_idle
from tpuserve_loadtests.cli.server_metrics import server_metrics_option, watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import Generators, generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.reports.run_report import RunReport

DEFAULT_USERS = "1,2,4,8,16,32,64,128"
EPILOG = """\b
Examples:
  tpuserve loadtest sweep digits                             1 to 128 users
  tpuserve loadtest sweep digits --rate 100,200,400,800 --duration 30s
  tpuserve loadtest sweep digits --rate 100,200,400,800,1600 --until 'p99>100ms'

Exit codes: as `run`, the highest of all runs.
"""


@click.command(cls=ThresholdCommand, epilog=EPILOG, short_help="Load after load: latency over throughput.")
@click.argument("model", required=False)
@scenario_option
@address_options
@version_options
@click.option("--users", metavar="N,N,...", help=f"Closed loads.  [default: {DEFAULT_USERS}]")
@click.option("--rate", metavar="R,R,...", help="Open loads instead, in requests/s.")
@click.option(
    "--until",
    multiple=True,
    metavar="GATE...",
    help="End with the first load of which it is true: 'p99>100ms' 'error_rate>1%'; several may follow.",
)
@open_options
@time_options("10s", "1s")
@request_options
@generator_options
@server_metrics_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@file_options
def sweep(model: str | None, **given: Any) -> None:  # noqa: ANN401  click's values
    """Load a running server with predict requests for MODEL, more at each step, and print rate and latencies of each.

    Ctrl-C ends it; what was measured is printed. So does --until, with the load that is too much.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from rich.console import Console

    from tpuserve_loadtests.judgement.hopeless import Hopeless, limits_us
    from tpuserve_loadtests.judgement.threshold import gate_results
    from tpuserve_loadtests.measurement.measured import STOPPED_EARLY
    from tpuserve_loadtests.report_page.sweep_page import sweep_page
    from tpuserve_loadtests.reports.csv_report import sweep_csv
    from tpuserve_loadtests.reports.hdr_log import hdr_log
    from tpuserve_loadtests.reports.junit import junit_xml
    from tpuserve_loadtests.reports.run_report import as_document, build_report
    from tpuserve_loadtests.reports.sweep_report import print_sweep, sweep_cases

    asked, given = find_asked(model, given, own_load=True)
    refuse_idle(given)
    files = Files.given(given)
    files.refuse_distribution()
    until = _until(given["until"])
    loads = [replace(load, limits_us=limits_us(until)) for load in _loads(given, asked.least_users)]
    target = asked.find_target()
    strict = given["generator_limit"] == "fail"
    reports: list[RunReport] = []
    with generating(target, Generators.given(given)) as runs, watch_server(given, asked.specs) as server:
        for load in loads:
            with server.during(load) as seen:
                title = f"Step {len(reports) + 1} of {len(loads)}, for"
                measured = run_load(runs, load, Hopeless(until, load).why, title)
            reports.append(
                build_report(measured, model=asked.title, rows=target.workload.rows, strict=strict, seen=seen)
            )
            if measured.stopped == STOPPED_EARLY or measured.lost:
                break
            if too_much := [result for result in gate_results(until, measured) if result.failed]:
                click.echo(f"  --until {too_much[0].gate} is true of {load}: {_left(loads, reports)}", err=True)
                break
    if given["as_json"]:
        click.echo(json.dumps([as_document(report) for report in reports], indent=2))
    else:
        print_sweep(reports, Console())
    files.write(
        html=lambda: sweep_page(reports, describe_settings(target)),
        csv=lambda: sweep_csv(reports),
        hdr=lambda: hdr_log({str(report.measured.load): report.measured for report in reports}),
        junit=lambda: junit_xml("loadtest sweep", asked.title, sweep_cases(reports)),
    )
    sys.exit(max(report.exit_code for report in reports))


def _until(texts: tuple[str, ...]) -> "tuple[Threshold, ...]":
    until = thresholds(texts, "--until")
    for threshold in until:
        if threshold.is_of_checks:
            raise click.BadParameter(
                f"{threshold} is of golden answers, which a sweep has none of", param_hint="--until"
            )
    return until


def _left(loads: "Sequence[Load]", done: "Sequence[RunReport]") -> str:
    left = len(loads) - len(done)
    return f"{left} further load{'s are' if left > 1 else ' is'} not run" if left else "it was the last one"


def _loads(given: dict[str, Any], protocols: int) -> "list[Load]":
    refuse_both(given)
    if given["rate"]:
        steps = open_load(given["rate"], given).profile
        assert steps is not None  # an open load has one
        rates = [segment.start_per_s for segment in steps.segments]
        if any(segment.start_per_s != segment.end_per_s for segment in steps.segments):
            raise click.BadParameter("steps are levels, not ramps: 100,200,400", param_hint="--rate")
        return [open_load(f"{rate:f}", given) for rate in rates]
    users = (given["users"] or DEFAULT_USERS).split(",")
    if not all(each.strip().isdigit() and int(each) for each in users):
        raise click.BadParameter(f"{given['users']!r}: write 1,2,4,8", param_hint="--users")
    # Fewer users than protocols there cannot be: the first steps of the default fall together.
    counts = dict.fromkeys(int(each) if given["users"] else max(int(each), protocols) for each in users)
    return [closed_load(count, given, protocols) for count in counts]
