"""Loads from options, and how one is run with a person watching."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from tpuserve_loadtests.cli.options import USERS_HELD_BESIDE

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.measurement.recorder import Counts
    from tpuserve_loadtests.server_side.server_watch import ServerWatch
    from tpuserve_loadtests.server_side.watched import Watched
    from tpuserve_loadtests.traffic.engine import Runs, Watch

# After Ctrl-C, answers in flight are here so soon, as a rule.
_MOMENT_S: Final = 1.0
# Options that say what the load is, of which there is one at most.
WAYS: Final = ("users", "rate", "trace_file")


def closed_load(users: int, given: Mapping[str, Any], protocols: int) -> "Load":
    """So many users, which the protocols share. A usage error for fewer than protocols."""
    from tpuserve_loadtests.arrivals.load import Load

    if users < protocols:
        raise click.UsageError(f"--users {users} cannot be shared between {protocols} protocols")
    return Load(given["duration"], given["warm_up"], users, seed=given["seed"])


def users_or_rate(given: Mapping[str, Any], protocols: int) -> "Load":
    """The closed load of --users or the open one of --rate. Usage errors, as for both."""
    refuse_both(given)
    if given["rate"]:
        return open_load(given["rate"], given)
    return closed_load(given["users"] or USERS_HELD_BESIDE, given, protocols)


def refuse_both(given: Mapping[str, Any]) -> None:
    """A usage error for --users and --rate together."""
    if given["users"] and given["rate"]:
        raise click.UsageError("--users is a closed load, --rate is an open one: give one of them")


def open_load(rate: str, given: Mapping[str, Any]) -> "Load":
    """A rate as RateProfile.parse reads it. A usage error for none."""
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.arrivals.rate_profile import RateProfile

    try:
        profile = RateProfile.parse(rate, given["duration"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from None
    return Load(
        given["duration"],
        given["warm_up"],
        profile=profile,
        process=given["process"],
        burst=given["burst"],
        seed=given["seed"],
    )


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

    from tpuserve_loadtests.reports.progress import Progress

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
