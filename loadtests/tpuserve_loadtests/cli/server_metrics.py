"""`--server-metrics`: where the server says of itself what it did during a run."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from tpuserve_loadtests.cli.options import DEFAULT_REST

if TYPE_CHECKING:
    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.server_side.server_watch import ServerWatch

AUTO: Final = "auto"
OFF: Final = "off"
HOW: Final = "where the time went is not known: give --server-metrics http://HOST:8501/metrics, or --server-metrics off"

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's commands take any arguments


def server_metrics_option(command: _Command) -> _Command:
    """Where the server's metrics are."""
    return click.option(
        "--server-metrics",
        metavar="auto|URL|off",
        default=AUTO,
        show_default=True,
        callback=_checked,
        help="The server's page of metrics, to tell where the time went; auto: at the REST address.",
    )(command)


def watch_server(given: Mapping[str, Any], specs: "Collection[ModelSpec]") -> "ServerWatch":
    """The page that the options mean. A server without one is a run's note."""
    from tpuserve_loadtests.server_side.dialect import Served
    from tpuserve_loadtests.server_side.server_watch import ServerWatch

    # A label may move while a load runs: all versions count.
    served = Served(tuple((spec.name, spec.version) for spec in specs))
    choice = given["server_metrics"]
    if choice == OFF:
        return ServerWatch("", served)
    if choice != AUTO:
        return ServerWatch(choice, served)
    rest_url = given["rest_url"] or (None if given["grpc_address"] else DEFAULT_REST)
    if rest_url is None:
        return ServerWatch("", served, HOW)
    parts = urlsplit(rest_url)
    return ServerWatch(f"{parts.scheme}://{parts.netloc}", served)


def _checked(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value in (AUTO, OFF):
        return value
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    try:
        place = parse_address(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from None
    if not place.is_rest:
        raise click.BadParameter(f"{value!r} is no URL, such as http://localhost:8501/metrics, nor auto nor off")
    return place.target
