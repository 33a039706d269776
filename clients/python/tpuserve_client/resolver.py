"""Lookup of a host name's IP addresses, blocking and asyncio."""

import socket
from typing import Any

from tpuserve_client.errors import TpuserveError, Unavailable


def look_up(host: str) -> tuple[str, ...]:
    """Return the IPv4 and IPv6 addresses of `host`. Blocks as long as the system's resolver. Raises Unavailable."""
    try:
        return _ips(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise _not_found(host, error) from None


async def look_up_async(host: str) -> tuple[str, ...]:
    """Return the IPv4 and IPv6 addresses of `host`, like `look_up`. Does not block the event loop."""
    import asyncio  # only here: it takes long, and the blocking client does not need it

    try:
        return _ips(await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise _not_found(host, error) from None


def _ips(found: list[Any]) -> tuple[str, ...]:  # tuples of getaddrinfo, whose types differ by family
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _not_found(host: str, error: Exception) -> TpuserveError:
    return Unavailable(f"Cannot look up the host {host}: {getattr(error, 'strerror', None) or error}.")
