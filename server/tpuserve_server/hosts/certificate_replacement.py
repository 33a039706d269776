"""The check of certificates that should replace those in use."""

from collections.abc import Callable

from tpuserve_server.hosts.certificate_validity import find_invalidity
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions, check_usable


def check_replacement(read: Callable[[], TlsOptions], current: TlsOptions | None) -> TlsOptions:
    """Read certificates that should replace the current ones, and check them. Blocks.

    Raises:
        HostError: they cannot be read or used, no client would accept them now, or only one of both has a `client_ca`.
    """
    tls = read()
    check_usable(tls)
    if invalidity := find_invalidity(tls):
        raise HostError(invalidity)
    if current is not None and (tls.client_ca is None) is not (current.client_ca is None):
        raise HostError(f"{tls.origin}: a reload can replace custom_ca, but not add or remove it. Restart the server.")
    return tls
