"""The option `--server-metrics`: the address of the server's metrics page."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from tpuserve_loadtests.cli.access import SECURE, find_access
from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.cli.options import DEFAULT_GRPC, DEFAULT_REST, ServerOptions
from tpuserve_loadtests.requests.protocols import without_prefix

if TYPE_CHECKING:
    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.access import Access
    from tpuserve_loadtests.monitoring.energy import EnergyWatch
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch

AUTO: Final = "auto"
OFF: Final = "off"
HOW: Final = (
    "the time breakdown needs the server's metrics; set --server-metrics http://HOST:8501/metrics, or "
    "--server-metrics off"
)


def metrics_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-metrics, the address of the server's metrics."""
    return _metrics_option("auto|URL|off", _checked, "auto: at the REST address")


def sides_metrics_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-metrics for two sides, with a value for each server."""
    return _metrics_option("auto|URL[,URL]|off", _checked_sides, "for two servers, the pages of A and B")


def pids_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-pid, the server's processes."""
    return option(
        "--server-pid",
        metavar="PID",
        multiple=True,
        type=click.IntRange(1),
        help="Process of the server on this machine, to measure its CPU and memory with its child processes; "
        "repeatable.",
    )


def watch_server(
    options: ServerOptions,
    choice: str,
    specs: "Collection[ModelSpec]",
    pids: tuple[int, ...] = (),
    energy: "EnergyWatch | None" = None,
) -> "ServerWatch":
    """Watch the page that `choice` names, the processes and the energy. Without a page, the run has a note.

    Raises a usage error if a process does not run.
    """
    from tpuserve_loadtests.monitoring.metrics_page import Served
    from tpuserve_loadtests.monitoring.process_use import NoProcess, ProcessTree
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch

    try:
        processes = ProcessTree(pids) if pids else None
    except NoProcess as error:
        raise click.BadParameter(str(error), param_hint="--server-pid") from None

    # Include all versions, because a label can move while a load runs.
    served = Served(tuple((spec.name, spec.version) for spec in specs))
    if choice == OFF:
        return ServerWatch("", served, processes=processes, energy=energy)
    access = find_access(options.access)
    if choice != AUTO:
        page = page_access(access, choice, options)
        return ServerWatch(choice, served, access=page, processes=processes, energy=energy)
    rest_url = options.rest_url or (None if options.grpc_address else DEFAULT_REST)
    if rest_url is None:
        return ServerWatch("", served, HOW, processes=processes, energy=energy)
    parts = urlsplit(without_prefix(rest_url))
    url = f"{parts.scheme}://{parts.netloc}"
    return ServerWatch(url, served, access=access, processes=processes, energy=energy)


def page_access(access: "Access", url: str, options: ServerOptions) -> "Access":
    """Return the access for a metrics page.

    Another host receives no headers and no client certificate. Neither does a plaintext page if the server uses TLS.
    """
    from tpuserve_client.tls import Tls
    from tpuserve_loadtests.access import Access

    page = urlsplit(url)
    addresses = [urlsplit(text if "://" in text else f"//{text}") for text in _server_addresses(options)]
    is_same = any(page.hostname == each.hostname for each in addresses)
    is_open = page.scheme == "http" and any(f"{each.scheme}://" in SECURE for each in addresses)
    return access if is_same and not is_open else Access(Tls(access.tls.ca))


def _server_addresses(options: ServerOptions) -> list[str]:
    texts = [without_prefix(text) for text in (options.grpc_address, options.rest_url) if text]
    return texts or [DEFAULT_GRPC, DEFAULT_REST]


def _metrics_option(metavar: str, callback: Callable[..., Any], which: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-metrics. `which` names the server of the page in the help."""
    return option(
        "--server-metrics",
        metavar=metavar,
        default=AUTO,
        show_default=True,
        callback=callback,
        help=f"Metrics page of the server, for the time breakdown; {which}.",
    )


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
        raise click.BadParameter(f"{value!r} is not auto, off or a URL such as http://localhost:8501/metrics.")
    return place.target


def _checked_sides(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Return one page for both sides, or one for each."""
    values = tuple(_checked(context, parameter, each.strip()) for each in value.split(","))
    if len(values) > 2:
        raise click.BadParameter(f"{value!r} has {len(values)} pages. Set at most two, for A and B.")
    return values
