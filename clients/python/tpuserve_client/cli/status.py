"""`tpuserve status`: print whether the server or a model is ready."""

import json
import sys

import click

from tpuserve_client.cli.connection import Connection, connection_options, countdown
from tpuserve_client.cli.render import show_versions, versions_document
from tpuserve_client.model import State, VersionStatus


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@connection_options
@click.option("--version", type=click.IntRange(min=0), help="Version to show. Default: all.")
@click.option("--wait", is_flag=True, help="Wait up to --timeout seconds until it is ready.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(model: str | None, connection: Connection, version: int | None, wait: bool, as_json: bool) -> None:
    """Show the versions of MODEL with states and reasons. Without MODEL, show whether and why the server is not ready.

    A reason is the error of a failed version, or the cause of a wait: files that are missing in the version directory,
    or the next attempt after a failed load.

    The exit code is 0 if the server is ready, or if a version of MODEL is AVAILABLE, otherwise 1.
    """
    if model is None and version is not None:
        raise click.UsageError("--version requires a MODEL.")
    remaining_s = countdown(connection.timeout_s)
    with connection.one_line_errors(), connection.client() as client:
        if wait:
            client.wait_until_ready(connection.timeout_s, model, version=version)
        if model is None:
            reason = client.why_not_ready(timeout_s=remaining_s())
            is_ready = not reason
            _show_server(connection, reason, as_json)
        else:
            versions = client.status(model, version=version, timeout_s=remaining_s())
            is_ready = any(item.state == State.AVAILABLE for item in versions)
            if not versions:  # some servers of the Open Inference Protocol have no versions
                is_ready = client.is_ready(model, version=version, timeout_s=remaining_s())
            _show_model(model, versions, as_json)
    sys.exit(0 if is_ready else 1)


def _show_server(connection: Connection, reason: str, as_json: bool) -> None:
    address = connection.address
    if as_json:
        click.echo(json.dumps({"address": address, "ready": not reason, "reason": reason}))
    else:
        click.echo(f"{address} is not ready: {connection.advised(reason)}" if reason else f"{address} is ready")


def _show_model(model: str, versions: tuple[VersionStatus, ...], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(versions_document(model, versions)))
    else:
        show_versions(model, versions)
