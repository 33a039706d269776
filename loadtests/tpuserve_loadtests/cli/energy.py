"""Choice of the energy counters: those of this machine, if the server runs on it."""

from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tpuserve_loadtests.cli.options import GeneratorOptions
from tpuserve_loadtests.requests.protocols import without_prefix

if TYPE_CHECKING:
    from tpuserve_loadtests.monitoring.energy import EnergyWatch


def find_energy(addresses: Iterable[str], generator: GeneratorOptions) -> "EnergyWatch":
    """Return a reader of this machine's counters, which measures nothing unless all addresses are loopback addresses.

    With remote workers, a loopback address names the machine of each worker.
    """
    from tpuserve_loadtests.monitoring.energy import ROOT, EnergyWatch

    is_here = not generator.remote and all(map(is_loopback, addresses))
    return EnergyWatch(Path(ROOT) if is_here else None)


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
