"""`tpuserve status`: is the server, or a model, ready?"""

import json
import sys

import click

from tpuserve_client.cli.connection import connection_options, one_line_errors
from tpuserve_client.cli.render import show_versions, versions_document
from tpuserve_client.client import Client
from tpuserve_client.model import State


@click.command(short_help="Show whether the server, or a model, is ready.")
@click.argument("model", required=False)
@connection_options
@click.option("--version", type=click.IntRange(min=0), help="Only this version.")
@click.option("--wait", is_flag=True, help="Wait until it is ready, for up to --timeout seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(model: str | None, address: str, timeout_s: float, version: int | None, wait: bool, as_json: bool) -> None:
    """Show MODEL's versions, their states and errors; without MODEL, whether the server is ready.

    The exit code is 0 if it is ready (for a model: if a version is AVAILABLE), and 1 if it is not.
    """
    if model is None and version is not None:
        raise click.UsageError("--version needs a MODEL.")
    with one_line_errors(), Client(address, timeout_s=timeout_s) as client:
        if wait:
            client.wait_until_ready(timeout_s, model, version=version)
        is_ready = (
            _show_server(client, address, as_json) if model is None else _show_model(client, model, version, as_json)
        )
    sys.exit(0 if is_ready else 1)


def _show_server(client: Client, address: str, as_json: bool) -> bool:
    is_ready = client.is_ready()
    document = json.dumps({"address": address, "ready": is_ready})
    click.echo(document if as_json else f"{address} is {'ready' if is_ready else 'not ready'}")
    return is_ready


def _show_model(client: Client, model: str, version: int | None, as_json: bool) -> bool:
    versions = client.status(model, version=version)
    if as_json:
        click.echo(json.dumps(versions_document(model, versions)))
    else:
        show_versions(model, versions)
    return any(item.state == State.AVAILABLE for item in versions)
