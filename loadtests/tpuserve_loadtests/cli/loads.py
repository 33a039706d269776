"""Loads from options, and how one is run with a person watching."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import click

from tpuserve_loadtests.cli.options import (
    USERS_HELD_BESIDE,
    ArrivalOptions,
    GeneratorOptions,
    TimeOptions,
    UsersOrRateOptions,
)

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.arrivals.process import Process
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.measurement.recorder import Counts
    from tpuserve_loadtests.server_side.server_watch import ServerWatch
    from tpuserve_loadtests.server_side.watched import Watched
    from tpuserve_loadtests.traffic.engine import Runs, Watch

# After Ctrl-C, answers in flight are here so soon, as a rule.
_MOMENT_S: Final = 1.0
# Options that say what the load is, of which there is one at most.
WAYS: Final = ("users", "rate", "trace_file")


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """Settings that all loads of a command share."""

    seconds: float
    warm_up_s: float
    process: "Process"
    burst: int
    seed: int

    @classmethod
    def of(cls, time: TimeOptions, arrivals: ArrivalOptions, generator: GeneratorOptions) -> Self:
        """Take the terms from the options."""
        return cls(time.duration, time.warm_up, arrivals.process, arrivals.burst, generator.seed)

    def closed(self, users: int, protocols: int) -> "Load":
        """So many users, which the protocols share. A usage error for fewer than protocols."""
        from tpuserve_loadtests.arrivals.load import Load

        if users < protocols:
            raise click.UsageError(f"--users {users} cannot be shared between {protocols} protocols")
        return Load(self.seconds, self.warm_up_s, users, seed=self.seed)

    def open(self, rate: str) -> "Load":
        """A rate as RateProfile.parse reads it. A usage error for none."""
        from tpuserve_loadtests.arrivals.load import Load
        from tpuserve_loadtests.arrivals.rate_profile import RateProfile

        try:
            profile = RateProfile.parse(rate, self.seconds)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--rate") from None
        return Load(
            self.seconds, self.warm_up_s, profile=profile, process=self.process, burst=self.burst, seed=self.seed
        )

    def users_or_rate(self, options: UsersOrRateOptions, protocols: int) -> "Load":
        """The closed load of --users or the open one of --rate. Usage errors, as for both."""
        refuse_both(options.users, options.rate)
        if options.rate:
            return self.open(options.rate)
        return self.closed(options.users or USERS_HELD_BESIDE, protocols)


def refuse_both(users: int | str | None, rate: str | None) -> None:
    """A usage error for --users and --rate together."""
    if users and rate:
        raise click.UsageError("--users is a closed load, --rate is an open one: give one of them")


def run_watched(
    runs: "Runs", server: "ServerWatch", load: "Load", hopeless: "Watch | None" = None, title: str = "Running for"
) -> "Watched":
    """As run_load, with the server watched meanwhile."""
    from tpuserve_loadtests.server_side.watched import Watched

    with server.during(load) as seen:
        measured = run_load(runs, load, hopeless, title)
    return Watched.of(measured, seen)


def run_load(
    runs: "Runs", load: "Load", hopeless: "Watch | None" = None, title: str = "Running for", *, quiet: bool = False
) -> "Measured":
    """Run it with progress on standard error, unless quiet; ends early for what `hopeless` says, as Hopeless.why."""
    from rich.console import Console

    from tpuserve_loadtests.rendering.progress import Progress

    with Progress(load, Console(stderr=True, quiet=quiet), title) as progress, _waiting_told(runs):

        def watch(elapsed_s: float, counts: "Counts") -> str:
            progress.tick(elapsed_s, counts)
            return hopeless(elapsed_s, counts) if hopeless else ""

        return runs.run(load, watch)


@contextmanager
def _waiting_told(runs: "Runs") -> Iterator[None]:
    """Say what is waited for to whoever pressed Ctrl-C, unless it is over in a moment."""
    import gevent

    def tell() -> None:
        runs.interrupted.wait()
        gevent.sleep(_MOMENT_S)
        click.echo("Ended; waiting for answers in flight, no longer than --timeout. Ctrl-C again ends that", err=True)

    telling = gevent.spawn(tell)
    try:
        yield
    finally:
        telling.kill()
