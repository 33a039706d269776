"""Loads and thresholds from options, and the execution of loads with progress output and pushed metrics."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click
import gevent
from rich.console import Console

from tpuserve_loadtests.arrivals.duration import ThinkTime
from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.cli.access import explicit_names
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.commands import CompareOptions, RunOptions, SearchOptions, SoakOptions, SweepOptions
from tpuserve_loadtests.cli.options import (
    PROBING_USERS,
    LoadOptions,
    PushOptions,
    UsersOrRateOptions,
)
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.terminal import Progress
from tpuserve_loadtests.traffic.target import Runs, Watch

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.otlp_push import OtlpPush

# Responses in flight usually arrive this soon after Ctrl-C.
_MOMENT_S: Final = 1.0
_WAITING: Final = "Interrupted. Waiting for responses in flight, at most --timeout. Press Ctrl-C again to stop waiting."
# An open load without a rate looks at the server's metrics for this time, and else runs a closed load.
_LOOK_S: Final = 2.0
_PROBE_S: Final = 3.0
_SHARE: Final = 0.5
_LEAST_RATE: Final = 1.0
# Options that define the load, of which a command takes at most one.
WAYS: Final = ("users", "rate", "trace_file")
# Options that belong to one of these.
OF_WAYS: Final = ("think_time",)


def base_load(options: LoadOptions | CompareOptions | RolloutOptions) -> Load:
    """Return the load of the options, still without users or a rate."""
    time, arrivals = options.time, options.arrivals
    return Load(
        time.duration, time.warm_up, process=arrivals.process, burst=arrivals.burst, seed=options.generator.seed
    )


def closed_load(base: Load, users: int, protocols: int, think: ThinkTime | None = None) -> Load:
    """Return a load of `users`, which the protocols share. Raise a usage error for fewer users than protocols."""
    if users < protocols:
        raise click.UsageError(f"--users {users} is too low for {protocols} protocols. Each protocol needs a user.")
    return replace(base, users=users, think=think)


def open_load(base: Load, rate: str) -> Load:
    """Return a load with a rate for RateProfile.parse. Raise a usage error for an invalid rate."""
    with refused(ValueError, hint="--rate"):
        profile = RateProfile.parse(rate, base.seconds)
    if math.isinf(base.seconds) and not profile.is_level:
        raise click.UsageError("--requests with steps or a ramp in --rate needs --duration, which sets its length.")
    return replace(base, profile=profile)


def users_or_rate(base: Load, options: UsersOrRateOptions, protocols: int) -> Load:
    """Return the closed load of --users or the open load of --rate. Raise a usage error for both.

    Without either, return the closed load from which `opened` finds a rate.
    """
    refuse_both(options.users, options.rate)
    if options.rate:
        refuse_think_time(options.think_time)
        return open_load(base, options.rate)
    return closed_load(base, options.users or max(PROBING_USERS, protocols), protocols, options.think_time)


def opened(load: Load, options: UsersOrRateOptions, runs: Runs, server: ServerWatch) -> Load:
    """Return the load, or an open one instead if the user set neither --users, --rate nor --think-time.

    Its rate is that of the requests that the server answers now. If its metrics page shows none, the rate is a share of
    what the closed load reaches in a few seconds. Prints the rate. Ctrl-C during this also ends the next load.
    """
    if options.users or options.rate or options.think_time:
        return load
    rate_per_s, origin = server.rate_per_s(_LOOK_S) or 0.0, "the current rate of the server"
    if rate_per_s < _LEAST_RATE:
        probe = replace(load, seconds=_PROBE_S, warm_up_s=1.0, requests=0, limits_us=())
        reached = run_load(runs, probe, title="Looking for a rate, for")
        if reached.stopped:
            return load
        rate_per_s, origin = _SHARE * reached.rate_per_s, f"half of the rate that {load} reached"
    if rate_per_s < _LEAST_RATE:
        return load
    profile = RateProfile.parse(f"{rate_per_s:.3g}" if rate_per_s < 1000 else f"{rate_per_s:.0f}", load.seconds)
    found = replace(load, users=0, profile=profile, origin=origin)
    click.echo(f"{found.note[0].upper()}{found.note[1:]}", err=True)
    return found


def refuse_think_time(think: ThinkTime | None) -> None:
    """Raise a usage error for --think-time with an open load."""
    if think:
        raise click.UsageError("--think-time has no effect in an open load, whose arrivals do not wait for responses.")


def refuse_both(users: int | str | None, rate: str | None) -> None:
    """Raise a usage error for --users and --rate together."""
    if users and rate:
        raise click.UsageError(
            "--users and --rate exclude each other. Set --users for a closed load, or --rate for an open one."
        )


def run_watched(
    runs: Runs, server: ServerWatch, load: Load, hopeless: Watch | None = None, title: str = "Running for"
) -> Watched:
    """Run the load as `run_load` does, and watch the server meanwhile."""
    with server.during(load) as seen:
        measured = run_load(runs, load, hopeless, title)
    return Watched.of(measured, seen)


def run_load(
    runs: Runs, load: Load, hopeless: Watch | None = None, title: str = "Running for", *, quiet: bool = False
) -> Measured:
    """Run the load with progress on standard error, unless `quiet`.

    The run ends early if `hopeless` returns a reason, as Hopeless.why does.
    """
    with Progress(load, Console(stderr=True, quiet=quiet), title) as progress, _waiting_reported(runs):

        def watch(elapsed_s: float, counts: Counts) -> str:
            reason = hopeless(elapsed_s, counts) if hopeless else ""
            if not reason:
                # A drawn line takes milliseconds, in which arrivals become due, so the end of the run comes first.
                progress.tick(elapsed_s, counts)
            return reason

        return runs.run(load, watch)


@contextmanager
def _waiting_reported(runs: Runs) -> Iterator[None]:
    def report_waiting() -> None:
        runs.interrupted.wait()
        gevent.sleep(_MOMENT_S)
        click.echo(_WAITING, err=True)

    reporter = gevent.spawn(report_waiting)
    try:
        yield
    finally:
        reporter.kill()


def thresholds(texts: tuple[str, ...], option: str) -> tuple[Threshold, ...]:
    """Parse the thresholds. Raise a usage error for an invalid text."""
    with refused(ValueError, hint=option):
        return tuple(Threshold.parse(text) for text in texts)


def rules_of(
    options: RunOptions | SweepOptions | SearchOptions | CompareOptions | SoakOptions | RolloutOptions,
) -> Rules:
    """Return the rules of a command, without lines. Raise a usage error for an invalid gate."""
    objectives = (each.opposite for each in thresholds(options.objectives, "--slo"))
    rules = Rules((*thresholds(options.gates, "--fail-if"), *objectives), strict=options.generator.strict)
    if isinstance(options, CompareOptions | SoakOptions | RolloutOptions):
        is_failed = options.unclear == "fail"
        return replace(rules, least_effect=options.least_effect, fail_if_unclear=is_failed)
    return rules


def check_push(options: PushOptions) -> None:
    """Raise a usage error for an interval without a receiver, or if the extra is not installed."""
    if options.otlp is None:
        if "otlp_interval" in explicit_names():
            raise click.UsageError("--otlp-interval has no effect without --otlp.")
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics.export  # noqa: F401  both are imported only to find them
    except ImportError:
        raise click.UsageError("--otlp needs the extra otlp: pip install 'tpuserve-loadtests[otlp]'") from None


@dataclass(frozen=True, slots=True)
class Pushing:
    """The runner of a command, and its pushes, or None without --otlp."""

    runs: Runs
    push: "OtlpPush | None" = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on failed pushes, complete after the block of `pushing`."""
        return self.push.notes if self.push else ()


@contextmanager
def pushing(runs: Runs, options: PushOptions, model: str) -> Iterator[Pushing]:
    """Push the metrics of all loads of the block. Print the first problem as a warning."""
    if options.otlp is None:
        yield Pushing(runs)
        return
    from tpuserve_loadtests.traffic.otlp_push import OtlpPush, PushedRuns

    def warn(words: str) -> None:
        click.echo(f"Warning: {words}", err=True)

    with OtlpPush(options.otlp, options.otlp_interval, model, warn) as push:
        yield Pushing(PushedRuns(runs, push), push)
