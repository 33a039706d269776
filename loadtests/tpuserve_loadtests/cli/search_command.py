"""The command `tpuserve loadtest search`, which finds the highest rate that keeps an objective."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tpuserve_loadtests.cli.command import command, group, option
from tpuserve_loadtests.cli.energy import find_energy
from tpuserve_loadtests.cli.explicit_options import refuse_ineffective, refuse_ineffective_arrivals
from tpuserve_loadtests.cli.files import publish
from tpuserve_loadtests.cli.load_options import LoadOptions
from tpuserve_loadtests.cli.rate_search import RangeOptions, search_rate
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.cli.server_metrics import watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds

if TYPE_CHECKING:
    from tpuserve_loadtests.judgement.threshold import Threshold


EPILOG = """\b
Examples:
  tpuserve loadtest search digits --slo 'p99<=20ms'
  tpuserve loadtest search digits --protocol grpc --slo 'p99<=20ms' 'error_rate<=0.1%' --duration 30s --precision 0.01

Exit codes: 0 a rate was found, 1 interrupted, or all requests failed, 2 usage error, 3 server unreachable,
98 the load generator was the limit, 99 no rate holds.
"""


@dataclass(frozen=True, slots=True)
class SearchOptions(LoadOptions):
    """Options of `search`."""

    objectives: tuple[str, ...] = option(
        "--slo", multiple=True, metavar="OBJECTIVE...", help="Objectives: 'p99<=20ms' 'error_rate<=1%'."
    )
    within: RangeOptions = group(RangeOptions)


@command(SearchOptions, ThresholdCommand, epilog=EPILOG, short_help="Find the highest rate that meets an objective.")
def search(options: SearchOptions) -> None:
    """Find the highest rate of requests for MODEL that meets every --slo.

    The search doubles the rate until a rate does not hold, and then bisects. A trial lasts --duration, or longer if a
    percentile needs more requests for 99 % confidence. A second trial with other arrivals confirms the result.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.reports.search import search_report

    traffic, options = find_traffic(options)
    refuse_ineffective_arrivals(options.arrivals)
    refuse_ineffective(options, options.metrics)
    objectives = _objectives(options.objectives)
    within = options.within
    if within.start and within.start > within.highest:
        raise click.BadParameter(f"{within.start:g} exceeds --to {within.highest:g}.", param_hint="--from")
    options.files.check()
    options.files.refuse_distribution()
    target = traffic.find_target()
    terms = options.terms
    energy = find_energy(target.addresses.values(), options.generator)
    with (
        generating(target, options.generator) as runs,
        watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        searched = search_rate(runs, server, terms, within, objectives, trust_generator=not options.generator.strict)
    searched = replace(searched, rows=target.workload.rows, price=options.price)
    report = search_report(traffic.title, searched, objectives, describe_settings(target))
    publish(report, options.files, as_json=options.as_json)


def _objectives(texts: tuple[str, ...]) -> "tuple[Threshold, ...]":
    from tpuserve_loadtests.judgement.search import is_objective

    if not texts:
        raise click.UsageError(
            "Missing option '--slo'. Set an objective, such as 'p99<=20ms' (or slo in the scenario)."
        )
    objectives = thresholds(texts, "--slo")
    for objective in objectives:
        if not is_objective(objective):
            raise click.BadParameter(
                f"{objective} is not an objective. Write an upper limit, such as 'p99<=20ms'.", param_hint="--slo"
            )
    return objectives
