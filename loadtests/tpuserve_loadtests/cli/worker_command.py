"""The command `tpuserve loadtest worker`, which lends this machine to a load test on another machine."""

import signal
import sys

import click

from tpuserve_loadtests.exit_codes import EXIT_FAILED

EPILOG = """\b
Examples:
  tpuserve loadtest worker coordinator:5557        before `tpuserve loadtest run --remote 1` on coordinator, or after

Exit codes: 0 the load test is over, 1 its coordinator is gone, or has all the workers it waited for, or a file of --ca,
--cert or --key is not on this machine, 2 usage.
"""


@click.command(short_help="Lend this machine to a load test that runs on another.", epilog=EPILOG)
@click.argument("coordinator", metavar="HOST:PORT")
def worker(coordinator: str) -> None:
    """Send a share of the load of a `tpuserve loadtest run --remote N`, which is found at HOST:PORT.

    Waits until it is there, and ends with it: Ctrl-C ends it at once. Trusts whoever answers there: it says which
    server is sent what.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{coordinator!r} is no HOST:PORT", param_hint="HOST:PORT")

    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.traffic.worker import CannotTakePart, CoordinatorGone, Worker

    # A worker has no report, so Ctrl-C ends it immediately.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        Worker(host, int(port), lambda words: click.echo(f"{coordinator}: {words}", err=True)).serve()
    except (CoordinatorGone, CannotTakePart) as error:
        click.echo(f"Error: {coordinator}: {error}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo(f"{coordinator}: the load test is over", err=True)
