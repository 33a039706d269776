"""`tpuserve loadtest search`: the highest rate at which an objective is kept."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from tpuserve_loadtests.cli.asked import find_asked
from tpuserve_loadtests.cli.files import Files
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
from tpuserve_loadtests.cli.rate_search import Searched, search_rate
from tpuserve_loadtests.cli.said import refuse_idle
from tpuserve_loadtests.cli.server_metrics import server_metrics_option, watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import Generators, generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds
from tpuserve_loadtests.exit_codes import EXIT_GATE

if TYPE_CHECKING:
    from tpuserve_loadtests.judgement.threshold import Threshold


EPILOG = """\b
Examples:
  tpuserve loadtest search digits --slo 'p99<=20ms'
  tpuserve loadtest search digits --protocol grpc --slo 'p99<=20ms' 'error_rate<=0.1%' --duration 30s --precision 0.01

Exit codes: 0 a rate was found, 1 interrupted, or nothing was answered, 2 usage, 3 no server,
98 the generator was the limit, 99 no rate holds.
"""


@click.command(cls=ThresholdCommand, epilog=EPILOG, short_help="The highest rate at which an objective is kept.")
@click.argument("model", required=False)
@scenario_option
@click.option("--slo", "objectives", multiple=True, metavar="OBJECTIVE...", help="'p99<=20ms', 'error_rate<=1%'.")
@address_options
@version_options
@click.option("--from", "start", type=click.FloatRange(0.1), help="First rate.  [default: half of one user's]")
@click.option("--to", "highest", type=click.FloatRange(0.1), default=1e6, help="Do not go beyond this rate.")
@click.option(
    "--precision",
    type=click.FloatRange(0.001, 1),
    default=0.02,
    show_default=True,
    help="How close to each other what holds and what does not shall come; 0.02 is 2 %.",
)
@open_options
@time_options("10s", "1s")
@request_options
@generator_options
@server_metrics_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@file_options
def search(model: str | None, **given: Any) -> None:  # noqa: ANN401  click's values
    """Find the highest rate of requests for MODEL at which every --slo is kept.

    Rates are doubled until one does not hold, then halved between. Each lasts --duration, or longer where a percentile
    needs more requests to be told with 99 % confidence; what is found is run again with other arrivals.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.report_page.search_page import search_page
    from tpuserve_loadtests.reports.csv_report import search_csv
    from tpuserve_loadtests.reports.hdr_log import hdr_log
    from tpuserve_loadtests.reports.junit import junit_xml
    from tpuserve_loadtests.reports.search_report import search_cases, search_statement

    asked, given = find_asked(model, given)
    refuse_idle(given)
    objectives = _objectives(given["objectives"])
    if given["start"] and given["start"] > given["highest"]:
        raise click.BadParameter(f"{given['start']:g} is above --to {given['highest']:g}", param_hint="--from")
    files = Files.given(given)
    files.refuse_distribution()
    target = asked.find_target()
    with generating(target, Generators.given(given)) as runs, watch_server(given, asked.specs) as server:
        searched = search_rate(runs, server, given, objectives)
    found, problem = searched.found, searched.problem
    statement = search_statement(found, [probe for probe, _ in searched.probes], problem)
    _tell(searched, as_json=given["as_json"])
    files.write(
        html=lambda: search_page(
            asked.title, found, searched.probes, problem, objectives, describe_settings(target), searched.servers
        ),
        csv=lambda: search_csv(searched.probes),
        hdr=lambda: hdr_log(
            {f"{number}:{probe.rate_per_s:.6g}": each for number, (probe, each) in enumerate(searched.probes, start=1)}
        ),
        junit=lambda: junit_xml(
            "loadtest search",
            asked.title,
            search_cases(found, problem, searched.exit_code, objectives, statement),
            statement,
        ),
    )
    sys.exit(searched.exit_code or (0 if found and found.best else EXIT_GATE))


def _tell(searched: Searched, *, as_json: bool) -> None:
    from rich.console import Console

    from tpuserve_loadtests.reports.search_report import print_search_servers, search_document, search_statement

    found, servers = searched.found, searched.servers
    probes = [probe for probe, _ in searched.probes]
    if as_json:
        click.echo(json.dumps(search_document(found, probes, searched.problem, servers), indent=2))
    else:
        click.echo(search_statement(found, probes, searched.problem))
        print_search_servers(servers, found, Console())


def _objectives(texts: tuple[str, ...]) -> "tuple[Threshold, ...]":
    from tpuserve_loadtests.judgement.objective import is_objective

    if not texts:
        raise click.UsageError("Missing option '--slo': say what must be kept, as 'p99<=20ms' (or slo in the scenario)")
    objectives = thresholds(texts, "--slo")
    for objective in objectives:
        if not is_objective(objective):
            raise click.BadParameter(
                f"{objective} says nothing that must be kept; write 'p99<=20ms'", param_hint="--slo"
            )
    return objectives
