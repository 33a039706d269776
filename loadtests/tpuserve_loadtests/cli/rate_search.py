"""Search for the highest rate that keeps objectives, on a running server."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.cli.loads import LoadTerms, run_watched
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GENERATOR

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.search import Probe, Searched
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch
    from tpuserve_loadtests.monitoring.watched import Watched
    from tpuserve_loadtests.traffic.target import Runs

# The search starts at half the rate of a single user, from a run of at most this length.
_FIRST_S = 2.0
# Defaults of a search.
HIGHEST: Final = 1e6
PRECISION: Final = 0.02


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The rates to search between, and the precision."""

    start: float | None = option(
        "--from", type=click.FloatRange(0.1), help="First rate to try.  [default: half of a single user's rate]"
    )
    highest: float = option("--to", type=click.FloatRange(0.1), default=HIGHEST, help="Highest rate to try.")
    precision: float = option(
        "--precision",
        type=click.FloatRange(0.001, 1),
        default=PRECISION,
        show_default=True,
        help="Largest distance between the rate that holds and the rate that does not; 0.02 is 2 %.",
    )


def search_rate(
    runs: "Runs",
    server: "ServerWatch",
    terms: LoadTerms,
    within: RangeOptions,
    objectives: "tuple[Threshold, ...]",
    *,
    trust_generator: bool,
) -> "Searched":
    """Search for the highest rate within the range, with open loads of these terms."""
    from tpuserve_loadtests.judgement.search import (
        Found,
        GeneratorLimit,
        Interrupted,
        NothingAnswered,
        Searched,
        Trials,
        search,
    )

    tries = _Tries(runs, server)
    trials = Trials(
        lambda load: tries.run(load, objectives),
        terms.open("1"),
        objectives,
        trust_generator=trust_generator,
        on_probe=tries.record,
    )
    try:
        alone = tries.run_alone(terms.warm_up_s)
        trials.check(alone)
        if missed := trials.missed_by(alone):
            return Searched(Found(None, None), trials.probes, tries.servers, "; ".join(missed))
        start = within.start or max(alone.rate_per_s / 2, 1.0)
        found = search(trials.attempt, start, within.highest, within.precision)
        return Searched(found, trials.probes, tries.servers)
    except Interrupted:
        return Searched(None, trials.probes, tries.servers, "interrupted", EXIT_FAILED)
    except NothingAnswered as nothing:
        return Searched(None, trials.probes, tries.servers, str(nothing), EXIT_FAILED)
    except GeneratorLimit as limit:
        return Searched(None, trials.probes, tries.servers, str(limit), EXIT_GENERATOR)


class _Tries:
    """Runner of loads that watches the server and keeps its metrics for the runs that count."""

    def __init__(self, runs: "Runs", server: "ServerWatch") -> None:
        from tpuserve_loadtests.judgement.search import SearchServers

        self.servers = SearchServers()
        self._runs, self._server = runs, server
        self._last: Watched | None = None

    def run_alone(self, warm_up_s: float) -> "Measured":
        """Run one user per line, without queueing. An objective that this load misses fails at every rate."""
        from tpuserve_loadtests.arrivals.load import Load

        load = Load(_FIRST_S, min(warm_up_s, _FIRST_S), users=len(self._runs.lines))
        watched = run_watched(self._runs, self._server, load, title="Single user, for")
        self.servers.alone = watched.condensed()
        return watched.runs[0]

    def run(self, load: "Load", objectives: "tuple[Threshold, ...]") -> "Measured":
        """Run a rate. A rate can take several runs until its verdict, of which the last one counts."""
        from tpuserve_loadtests.judgement.threshold import Hopeless, limits_us

        gates = tuple(objective.opposite for objective in objectives)
        load = replace(load, limits_us=limits_us(gates))
        self._last = run_watched(self._runs, self._server, load, Hopeless(gates, load).why, "Trying for")
        return self._last.runs[0]

    def record(self, probe: "Probe", measured: "Measured") -> None:
        """Print the verdict on a rate to standard error, and keep the server's metrics of its last run."""
        mark = "holds" if probe.holds else "does not hold"
        click.echo(f"  {probe.rate_per_s:10,.1f}/s  {mark:13}  {probe.reason}", err=True)
        assert self._last is not None  # it was run
        self.servers.probes.append((probe, self._last.condensed()))
