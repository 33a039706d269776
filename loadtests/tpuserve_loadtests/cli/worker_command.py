"""`tpuserve loadtest worker`: lend this machine to a load test that runs on another."""

import signal

import click


@click.command(short_help="Lend this machine to a load test that runs on another.")
@click.argument("coordinator", metavar="HOST:PORT")
def worker(coordinator: str) -> None:
    """Send a share of the load of a `tpuserve loadtest run --remote N`, which is found at HOST:PORT. Ends with it.

    Trusts whoever answers there: it says which server is sent what.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{coordinator!r} is no HOST:PORT", param_hint="HOST:PORT")

    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.traffic.worker import serve

    # It has nothing to report: Ctrl-C just ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    click.echo(f"Sending for {coordinator}, as soon as it is there", err=True)
    serve(host, int(port))
