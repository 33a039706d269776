"""The command `tpuserve loadtest worker`, which lends this machine to a load test on another machine."""

import signal
import sys

import click

from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED

EPILOG = """\b
Examples:
  tpuserve loadtest worker coordinator:5557        before or after `tpuserve loadtest run --remote 1` on coordinator

Exit codes: 0 the load test is over, 1 the coordinator disconnected or needs no more workers, or a file of --ca, --cert
or --key is missing on this machine, 2 usage error.
"""


@click.command(short_help="Send a share of a load test that runs on another machine.", epilog=EPILOG)
@click.argument("coordinator", metavar="HOST:PORT")
def worker(coordinator: str) -> None:
    """Send a share of the load of `tpuserve loadtest run --remote N`, whose coordinator listens at HOST:PORT.

    The worker waits for the coordinator, and ends with it. Ctrl-C ends the worker at once. The worker trusts the
    coordinator, which chooses the server and the requests.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{coordinator!r} is not HOST:PORT.", param_hint="HOST:PORT")

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
