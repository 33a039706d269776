"""`tpuserve loadtest worker`: lend this machine to a load test that runs on another."""

import click


@click.command()
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

    serve(host, int(port))
