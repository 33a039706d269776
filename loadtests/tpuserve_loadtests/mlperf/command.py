"""The command `tpuserve loadtest mlperf`, with the four scenarios of MLPerf Inference."""

from dataclasses import replace
from typing import Final

import click

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, files, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import HIGHEST, PRECISION, RangeOptions
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic
from tpuserve_loadtests.cli.search_command import search_rate
from tpuserve_loadtests.judgement.run import Rules, judge_generator
from tpuserve_loadtests.judgement.search import Searched
from tpuserve_loadtests.judgement.threshold import Hopeless, Threshold, limits_us
from tpuserve_loadtests.measurement.measured import INTERRUPTED
from tpuserve_loadtests.mlperf import options as mlperf_options
from tpuserve_loadtests.mlperf.options import FULL_S, OFFLINE_USERS, MlperfOptions
from tpuserve_loadtests.mlperf.report import mlperf_report, mlperf_search_report
from tpuserve_loadtests.mlperf.rules import MlperfOutcome, Result, Scenario, judge_mlperf
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.traffic.target import Runs, Target

_OFFLINE_ROWS: Final = "32"
_ROWS: Final = {"single-stream": "1", "multi-stream": "8", "server": "1"}
# A rate from short trials may fail over ten minutes. A failed run lowers the rate by this factor, for at most _RUNS
# runs.
_RUNS: Final = 4
_LESS: Final = 0.97


def mlperf(options: MlperfOptions) -> None:
    scenario = Scenario("".join(part.title() for part in options.scenario.split("-")))
    options = replace(options, server=access.with_address(options.server, options.server.protocol))
    server = options.server
    access.refuse_ineffective(options, options.metrics)
    options = _checked(options)
    files.check_files(options.files)
    addresses = access.find_addresses(options.protocol, server.grpc_address, server.rest_url)
    spec = targets.find_spec(options.model, options.version.version, options.version.label)
    requests = targets.Requests.of(options.requests, access.find_access(server.access))
    target = RequestedTraffic.of_model(spec, addresses, requests).find_target()
    energy = monitoring.find_energy(addresses.values(), options.generator)
    with (
        targets.generating(target, options.generator) as runs,
        monitoring.watch_server(server, options.metrics, [spec], energy=energy) as watch,
    ):
        searched = _search(runs, len(target.workload.lines), watch, options) if options.is_searched else None
        rate = options.target_qps if searched is None else _found_rate(searched, target, str(spec), options)
        watched, result = _measure(runs, watch, scenario, target.workload.rows, rate, options)
    outcome = MlperfOutcome(result, watched, options.quick, searched, target.workload.rows, options.price)
    report = mlperf_report(str(spec), outcome, _objectives(options), files.describe_settings(target))
    files.publish(report, options.files, as_json=options.as_json)


def _measure(
    runs: Runs, server: ServerWatch, scenario: Scenario, rows: float, rate: float | None, options: MlperfOptions
) -> tuple[Watched, Result]:
    """Measure the scenario, at `rate` in the server scenario.

    A run at a searched rate ends as soon as it cannot keep the objectives.
    """
    gates = tuple(objective.opposite for objective in _objectives(options))
    for left in reversed(range(_RUNS)) if options.is_searched else (0,):
        load = replace(_load(options, rate), limits_us=limits_us(gates))
        # The last run gives the result and takes its full time.
        hopeless = Hopeless(gates, load).why if left else None
        watched = loads.run_watched(runs, server, load, hopeless, f"{scenario} for")
        (measured,) = watched.runs
        generator = judge_generator(measured)
        limits = generator.limits if generator.fails(strict=options.generator.strict) else ()
        target_ms = None if options.latency is None else 1000 * options.latency
        result = judge_mlperf(scenario, measured, rows, target_ms, limits)
        is_ended = measured.stopped == INTERRUPTED or measured.lost
        if not left or is_ended or limits or result.valid_but_for_duration:
            break
        assert rate is not None  # it was searched for
        click.echo(f"  {rate:,.1f}/s does not hold for {load.seconds:g} s; trying {_LESS:.0%} of it", err=True)
        rate *= _LESS
    return watched, result


def _search(runs: Runs, lines: int, server: ServerWatch, options: MlperfOptions) -> Searched:
    return search_rate(
        runs,
        lines,
        server,
        _base(options, mlperf_options.QUICK_S),
        RangeOptions(None, HIGHEST, PRECISION),
        Rules(tuple(objective.opposite for objective in _objectives(options)), strict=options.generator.strict),
    )


def _found_rate(searched: Searched, target: Target, model: str, options: MlperfOptions) -> float:
    found = searched.found
    if found is None or found.best is None:
        report = mlperf_search_report(model, searched, _objectives(options), files.describe_settings(target))
        if options.as_json:
            click.echo(report.statement, err=True)
        files.publish(report, options.files, as_json=options.as_json, stderr=True)
    return found.best.rate_per_s


def _objectives(options: MlperfOptions) -> tuple[Threshold, ...]:
    if options.latency is None:
        return ()
    target_ms = f"{1000 * options.latency:.6f}".rstrip("0").rstrip(".")
    return (Threshold.parse(f"p99<={target_ms}ms"),)


def _base(options: MlperfOptions, seconds: float) -> Load:
    return Load(seconds, options.warm_up, seed=options.generator.seed)


def _load(options: MlperfOptions, rate: float | None) -> Load:
    seconds = options.duration or (mlperf_options.QUICK_S if options.quick else FULL_S)
    if rate is not None:
        return loads.open_load(_base(options, seconds), f"{rate:f}")
    users = (options.users or OFFLINE_USERS) if options.scenario == "offline" else 1
    return replace(_base(options, seconds), users=users)


def _checked(options: MlperfOptions) -> MlperfOptions:
    """Return the options with the number of rows that the rules require for a query. Raises usage errors."""
    scenario, rows = options.scenario, options.requests.rows
    if scenario == "server" and options.latency is None:
        raise click.UsageError("--scenario server needs --latency, such as 15ms for ResNet-50 or 130ms for BERT.")
    of_one = (("latency", options.latency, "server"), ("target-qps", options.target_qps, "server"))
    for name, value, of in (*of_one, ("users", options.users, "offline")):
        if value is not None and scenario != of:
            raise click.UsageError(f"--{name} applies only to --scenario {of}.")
    if options.quick and options.duration is not None:
        raise click.UsageError("--quick and --duration exclude each other. Set one of them.")
    if scenario in _ROWS and rows not in (None, _ROWS[scenario]):
        raise click.UsageError(
            f"A query of --scenario {scenario} has {counted(int(_ROWS[scenario]), 'sample')}. --rows is only for "
            "--scenario offline."
        )
    if options.protocol == "both":
        raise click.UsageError("mlperf measures one protocol. Set --protocol grpc or --protocol rest.")
    return replace(options, requests=replace(options.requests, rows=rows or _ROWS.get(scenario, _OFFLINE_ROWS)))
