"""`tpuserve loadtest run`: one load, one table."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuserve_loadtests.cli.asked import find_asked
from tpuserve_loadtests.cli.files import Files
from tpuserve_loadtests.cli.golden import golden_notes, golden_options, golden_settings, with_golden
from tpuserve_loadtests.cli.loads import WAYS, closed_load, open_load, run_load
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
    from tpuserve_loadtests.arrivals.load import Load

DEFAULT_USERS = 32

EPILOG = """\b
Examples:
  tpuserve loadtest run digits
  tpuserve loadtest run digits --protocol grpc --users 64 --duration 1m
  tpuserve loadtest run digits --rest http://localhost:8501 --input images.npz --rows 4 --json
  tpuserve loadtest run digits --rate 500 --fail-if 'p99>20ms' 'error_rate>0.1%' 'rate<490' --junit load.xml
  tpuserve loadtest run digits --rate 200 --html report.html       a page with charts
  tpuserve loadtest run digits --rate 100..1000 --duration 2m      a ramp; 100,200,400 are steps
  tpuserve loadtest run digits --rows 1:0.7,8:0.3                  seven requests of ten have one row
  tpuserve loadtest run digits --recorded requests-digits.jsonl    as they came; --speed 2 twice as fast
  tpuserve loadtest run digits --golden record --fail-if 'wrong>0'   answers are right under load, too
  tpuserve loadtest run digits --grpc grpcs://models.example:443 --header 'authorization: Bearer ${TOKEN}'
  tpuserve loadtest run --scenario mixed.yaml                      several models with weights
  tpuserve loadtest run digits --trace arrivals.txt --speed 2      instants in seconds, one a line

Exit codes: 0 all went well, 1 requests failed, 2 usage, 3 no server, 98 the generator was the limit, 99 a gate failed.
"""


@click.command(cls=ThresholdCommand, epilog=EPILOG, short_help="One load: rates, failures, latencies; gates for CI.")
@click.argument("model", required=False)
@scenario_option
@address_options
@version_options
@click.option("--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {DEFAULT_USERS}]")
@click.option("--rate", metavar="RATE", help="Open load, in requests/s: 500, steps as 100,200 or a ramp as 100..1000.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Open load: recorded arrivals, an instant in seconds on each line.",
)
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, help="Of --trace and --recorded.")
@open_options
@time_options("10s", "1s")
@request_options
@generator_options
@server_metrics_option
@golden_options
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="GATE...",
    help="Exit with 99 if it is true: 'p99>20ms', 'error_rate>0.1%', 'rate<500'; several may follow.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@file_options
def run(model: str | None, **given: Any) -> None:  # noqa: ANN401  click's values
    """Load a running server with predict requests for MODEL and print rates, failures and latencies.

    Closed (--users): each user sends its next request as soon as the last one is answered. Open (--rate, --trace):
    requests come whatever is answered, and latencies count from when each was due. Latencies are of answers, not of
    failures.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    # Locust patches the process too: after gRPC has been told, and before anything else is imported.
    from rich.console import Console

    from tpuserve_loadtests.judgement.hopeless import Hopeless, limits_us
    from tpuserve_loadtests.report_page.run_page import run_page
    from tpuserve_loadtests.reports.csv_report import run_csv
    from tpuserve_loadtests.reports.hdr_log import hdr_log, percentile_distribution
    from tpuserve_loadtests.reports.junit import junit_xml
    from tpuserve_loadtests.reports.run_report import build_report, print_report, report_json

    asked, given = find_asked(model, given)
    refuse_idle(given)
    gates = thresholds(given["gates"], "--fail-if")
    files = Files.given(given)
    # Of no way, recorded requests come as they did, and others of DEFAULT_USERS.
    is_free = all(given[name] is None for name in WAYS)
    timeline = asked.timeline(given["speed"]) if is_free else None
    load = _load(given, asked.least_users) if timeline is None else _instants_load(timeline.instants, given)
    load = replace(load, limits_us=limits_us(gates))
    target = with_golden(asked.find_target(timeline), given, gates)
    with (
        generating(target, Generators.given(given)) as runs,
        watch_server(given, asked.specs) as server,
        server.during(load) as seen,
    ):
        measured = run_load(runs, load, Hopeless(gates, load).why)
    report = build_report(
        measured,
        model=asked.title,
        rows=target.workload.rows,
        gates=gates,
        strict=given["generator_limit"] == "fail",
        seen=seen,
        told=(*golden_notes(target, measured), *(timeline.notes if timeline else ())),
    )
    if given["as_json"]:
        click.echo(report_json(report))
    else:
        print_report(report, Console())
    files.write(
        html=lambda: run_page(report, {**describe_settings(target), **golden_settings(target)}),
        csv=lambda: run_csv(measured),
        hdr=lambda: percentile_distribution(measured) if files.wants_distribution else hdr_log({"": measured}),
        junit=lambda: junit_xml("loadtest", asked.title, report.cases),
    )
    sys.exit(report.exit_code)


def _load(given: Mapping[str, Any], protocols: int) -> "Load":
    if sum(given[name] is not None for name in WAYS) > 1:
        raise click.UsageError("--users is a closed load, --rate and --trace are open ones: give one of them")
    if given["trace_file"] is not None:
        return _trace_load(given)
    if given["rate"] is not None:
        return open_load(given["rate"], given)
    return closed_load(given["users"] or DEFAULT_USERS, given, protocols)


def _trace_load(given: Mapping[str, Any]) -> "Load":
    from tpuserve_loadtests.arrivals.trace import BadTrace, read_trace

    try:
        trace = read_trace(given["trace_file"], given["speed"])
    except BadTrace as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None
    return _instants_load(trace, given)


def _instants_load(instants: tuple[float, ...], given: Mapping[str, Any]) -> "Load":
    """A recording says how long it lasts; its first part is the warm-up."""
    from tpuserve_loadtests.arrivals.load import Load

    warm_up_s = min(given["warm_up"], instants[-1] / 2)
    return Load(instants[-1] - warm_up_s, warm_up_s, trace=instants)
