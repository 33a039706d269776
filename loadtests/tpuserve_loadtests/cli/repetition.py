"""The options `--repeat-until-settled`, and the repetition of a run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.cli.explicit_options import explicit_names, flag
from tpuserve_loadtests.cli.loads import run_load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.settling import Settling
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.server_side.server_side import Seen
    from tpuserve_loadtests.server_side.server_watch import ServerWatch
    from tpuserve_loadtests.traffic.engine import Runs

# The smallest number of runs that has an interval with a confidence of 95 % (statistics.median_interval).
_LEAST_RUNS: Final = 6


@dataclass(frozen=True, slots=True)
class RepetitionOptions:
    """The figure that ends a repetition, and the limit of runs."""

    settling_figure: str | None = option(
        "--repeat-until-settled",
        type=click.Choice(["p50", "p90", "p99", "rate"]),
        help="Repeat the run until the 95 % interval of this figure's median is narrow enough.",
    )
    settled_within: float = option(
        "--settled-within",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.05,
        show_default=True,
        help="Largest distance of the interval from the median, with --repeat-until-settled; 0.05 is 5 %.",
    )
    most_runs: int = option(
        "--most-runs",
        type=click.IntRange(_LEAST_RUNS),
        default=20,
        show_default=True,
        help="Limit of the runs of --repeat-until-settled.",
    )

    @property
    def settling(self) -> "Settling | None":
        """The rule that ends the repetition, or None for a single run. Raise a usage error for options without it."""
        from tpuserve_loadtests.judgement.settling import Settling

        if self.settling_figure is not None:
            return Settling(self.settling_figure, self.settled_within)
        for name in ("settled_within", "most_runs"):
            if name in explicit_names():
                raise click.UsageError(f"{flag(name)} has no effect without --repeat-until-settled.")
        return None


def repeated(
    runs: "Runs", server: "ServerWatch", load: "Load", settling: "Settling", most: int
) -> "Iterator[tuple[Measured, Seen]]":
    """Run the load, each time with other arrivals, until the figure settles, `most` times, or until Ctrl-C.

    Yields complete runs. A stopped run is omitted, unless it is the first.
    """
    from tpuserve_loadtests.judgement.settling import interval_of
    from tpuserve_loadtests.outcomes.repetition import describe_interval

    done: list[Measured] = []
    for number in range(most):
        part = replace(load, seed=load.seed + number)
        with server.during(part) as seen:
            measured = run_load(runs, part, title=f"Run {number + 1} of at most {most}, for")
        if measured.stopped and done and not measured.lost:
            return
        yield measured, seen
        # Keep the totals alone: the windows of many runs would take hundreds of megabytes.
        done.append(measured.condensed())
        interval = interval_of(settling.figure, done)
        if interval is not None:
            reach = f"{100 * interval.distance:.3g} % from the median"
            words = describe_interval(settling.figure, interval)
            click.echo(f"  {settling.figure}: {words}, at most {reach}", err=True)
        if measured.stopped or settling.is_settled(done):
            return
