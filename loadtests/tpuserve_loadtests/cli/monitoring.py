"""The options of monitoring: the address of the server's metrics page, its processes, and the energy counters."""

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tpuserve_client.model import ModelSpec
from tpuserve_client.tls import Tls
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli.access import SECURE, find_access
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.options import AUTO, DEFAULT_GRPC, DEFAULT_REST, OFF, GeneratorOptions, ServerOptions
from tpuserve_loadtests.monitoring import energy as counters
from tpuserve_loadtests.monitoring.energy import EnergyWatch
from tpuserve_loadtests.monitoring.metrics_page import Served
from tpuserve_loadtests.monitoring.process_use import NoProcess, ProcessTree
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.requests.protocols import without_prefix

HOW: Final = (
    "the time breakdown needs the server's metrics; set --server-metrics http://HOST:8501/metrics, or "
    "--server-metrics off"
)


def watch_server(
    options: ServerOptions,
    choice: str,
    specs: Collection[ModelSpec],
    pids: tuple[int, ...] = (),
    energy: EnergyWatch | None = None,
) -> ServerWatch:
    """Watch the page that `choice` names, the processes and the energy. Without a page, the run has a note.

    Raises a usage error if a process does not run.
    """
    with refused(NoProcess, hint="--server-pid"):
        processes = ProcessTree(pids) if pids else None

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
    return ServerWatch(page_url(rest_url), served, access=access, processes=processes, energy=energy)


def page_url(rest_url: str) -> str:
    """Return the URL of a REST address's server, which has the metrics page."""
    parts = urlsplit(without_prefix(rest_url))
    return f"{parts.scheme}://{parts.netloc}"


def page_access(access: Access, url: str, options: ServerOptions) -> Access:
    """Return the access for a metrics page.

    Another host receives no headers and no client certificate. Neither does a plaintext page if the server uses TLS.
    """
    page = urlsplit(url)
    addresses = [urlsplit(text if "://" in text else f"//{text}") for text in _server_addresses(options)]
    is_same = any(page.hostname == each.hostname for each in addresses)
    is_open = page.scheme == "http" and any(f"{each.scheme}://" in SECURE for each in addresses)
    return access if is_same and not is_open else Access(Tls(access.tls.ca))


def _server_addresses(options: ServerOptions) -> list[str]:
    texts = [without_prefix(text) for text in (options.grpc_address, options.rest_url) if text]
    return texts or [DEFAULT_GRPC, DEFAULT_REST]


def find_energy(addresses: Iterable[str], generator: GeneratorOptions) -> EnergyWatch:
    """Return a reader of this machine's counters, which measures nothing unless all addresses are loopback addresses.

    With remote workers, a loopback address names the machine of each worker.
    """
    is_here = not generator.remote and all(map(is_loopback, addresses))
    return EnergyWatch(Path(counters.ROOT) if is_here else None)


def is_loopback(address: str) -> bool:
    """Return whether an address, in any form of the options, is a loopback address or a socket of this machine."""
    text = without_prefix(address)
    if text.startswith("unix:"):
        return True
    host = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
