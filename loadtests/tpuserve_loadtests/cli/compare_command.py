"""The command `tpuserve loadtest compare`, which tests whether version B is worse than version A."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, files, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import CompareOptions
from tpuserve_loadtests.cli.golden import compare_recorded
from tpuserve_loadtests.cli.options import AUTO, OFF, MeasuredServerOptions
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.requests.protocols import Protocol, port_of, protocol_of
from tpuserve_loadtests.traffic.target import Target
from tpuserve_loadtests.traffic.workers import WorkersFailed


def compare(options: CompareOptions) -> None:
    """Run both sides in rounds, and publish their comparison."""
    options = replace(options, server=access.with_address(options.server, options.server.protocol))
    server, names = options.server, (options.a, options.b)
    access.refuse_ineffective_arrivals(options.arrivals, is_open=not options.load.users)
    access.refuse_ineffective(options, *names)
    files.check_files(options.files)
    files.refuse_distribution(options.files)
    options.generator.check()
    rules = loads.rules_of(options)
    if options.generator.remote:
        raise click.UsageError("compare does not support --remote. Use --processes for more load.")
    sides = [_side(options.model, side, server) for side in names]
    if options.b_api_key_file is not None:
        sides[1] = sides[1].with_key(options.b_api_key_file)
    requests = [targets.Requests.of(options.requests, access.find_access(side.server.access)) for side in sides]
    metrics = _metrics(sides, options.metrics)
    traffic = [
        RequestedTraffic.of_model(side.spec, side.addresses, of_side)
        for side, of_side in zip(sides, requests, strict=True)
    ]
    both = [each.find_target() for each in traffic]
    rules = replace(rules, lines=traffic[1].lines(both[1], rules.gates))
    load = loads.users_or_rate(loads.base_load(options), options.load, len(both[0].addresses))
    energy = monitoring.find_energy([place for side in sides for place in side.addresses.values()], options.generator)
    with ExitStack() as stack:
        watches = [
            stack.enter_context(monitoring.watch_server(side.server, page, [side.spec], energy=energy))
            for side, page in zip(sides, metrics, strict=True)
        ]
        rounds, watched = interleaved(both, watches, options, load)
    outcome = judge_comparison(
        names,
        rounds,
        rules,
        sides=watched,
        rows=(both[0].workload.rows, both[1].workload.rows),
        prices=options.prices,
        interrupted=len(rounds) < options.rounds,
        parity=compare_recorded(both[0], both[1], options.requests.golden),
    )
    report = compare_report(options.model, outcome, files.describe_settings(*both))
    files.publish(report, options.files, as_json=options.as_json)


def interleaved(
    both: Sequence[Target],
    watches: Sequence[ServerWatch],
    options: CompareOptions | RolloutOptions,
    load: Load,
    *,
    until_failure: bool = False,
) -> tuple[list[tuple[Measured, Measured]], tuple[Watched, ...]]:
    """Run the options' rounds, A then B and next B then A. Return the pairs, and the runs of each side.

    Without a load option, `loads.opened` finds the load of all rounds, on A.
    After Ctrl-C, return only the complete rounds. With `until_failure`, stop after a round with a failed request.
    """
    rounds: list[tuple[Watched, ...]] = []
    planned, generator = options.rounds, options.generator
    with targets.generating(both[0], generator) as of_a, targets.generating(both[1], generator) as of_b:
        load = loads.opened(load, options.load, of_a, watches[0])
        for number in range(planned):
            order = list(enumerate(zip((of_a, of_b), watches, strict=True)))
            found: dict[int, Watched] = {}
            for side, (runs, server) in order if number % 2 == 0 else reversed(order):
                title = f"Round {number + 1} of {planned}, {'AB'[side]}, for"
                found[side] = loads.run_watched(runs, server, load, title=title)
                (measured,) = found[side].runs
                if measured.lost:
                    raise WorkersFailed(f"The load generator lost its worker on {measured.lost[0]}.")
                if measured.stopped:
                    return _paired(rounds)
            rounds.append((found[0], found[1]))
            if until_failure and any(watched.runs[0].total.failures for watched in found.values()):
                break
    return _paired(rounds)


def _paired(rounds: list[tuple[Watched, ...]]) -> tuple[list[tuple[Measured, Measured]], tuple[Watched, ...]]:
    pairs = [(a.runs[0], b.runs[0]) for a, b in rounds]
    return pairs, tuple(Watched.together(side) for side in zip(*rounds, strict=True))


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of the comparison. `server` holds the options with this side's addresses."""

    spec: ModelSpec
    addresses: dict[Protocol, str]
    server: MeasuredServerOptions

    def with_key(self, file: Path) -> "_Side":
        return replace(self, server=replace(self.server, access=replace(self.server.access, api_key_file=file)))


def _side(model: str, side: str, server: MeasuredServerOptions) -> _Side:
    address, _, which = side.rpartition("@") if "@" in side else (side, "", "") if ":" in side else ("", "", side)
    version = int(which) if which.isdigit() else None
    spec = targets.find_spec(model, version, which if which and version is None else None)
    if not address:
        return _Side(spec, access.find_addresses(server.protocol, server.grpc_address, server.rest_url), server)
    if not access.explicit_names().isdisjoint({"grpc_address", "rest_url"}):
        raise click.UsageError(f"{side!r} contains an address. Omit --grpc and --rest.")
    is_rest = port_of(protocol_of(address)) == "rest"
    own = replace(server, grpc_address=None if is_rest else address, rest_url=address if is_rest else None)
    return _Side(spec, access.find_addresses(None, own.grpc_address, own.rest_url), own)


def _metrics(sides: Sequence[_Side], pages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the metrics page of each side.

    Raises a usage error for a single page of two servers, whose values would count for both sides.
    """
    if len(pages) == 2:
        return pages
    if pages[0] not in (AUTO, OFF) and sides[0].addresses != sides[1].addresses:
        raise click.BadParameter(
            "A and B are different servers. Set the metrics pages of both, as URL,URL.", param_hint="--server-metrics"
        )
    return pages * 2
