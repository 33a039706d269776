"""Credentials of a client: an API key or token, its file, and the places that may receive it.

The server accepts `authorization: Bearer KEY`, for its own keys and for JSON Web Tokens. Gateways use the same header.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from tpuserve_client.address import Address
from tpuserve_client.errors import InvalidArgument, Unauthenticated
from tpuserve_client.request_headers import HeaderValue

# A key, or a function that returns the current one. Only `AsyncClient` awaits.
ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]

# Environment variable from which the commands read a key.
KEY_VARIABLE: Final = "TPUSERVE_API_KEY"
AUTHORIZATION: Final = "authorization"
# Headers that carry a key. tpuserve accepts both.
_CARRIERS: Final = frozenset((AUTHORIZATION, "x-api-key"))
_SCHEME: Final = "bearer"
_RESULT: Final = "The result of the function api_key"
# More than any key or token that fits into the headers.
_MOST_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeyFile:
    """An API key in a file, which the client reads before each attempt. Use it for a mounted secret that is replaced.

    The file contains the key on one line. Raises InvalidArgument if it does not, or if it cannot be read.
    """

    path: str | PathLike[str]

    def __post_init__(self) -> None:
        self()

    def __call__(self) -> str:
        """Return the key of the file."""
        try:
            with Path(self.path).open(encoding="utf-8") as file:
                text = file.read(_MOST_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise InvalidArgument(f"Cannot read the API key in {self.path}: {reason}.") from None
        return checked_key(text, f"The content of {self.path}")


@dataclass(frozen=True, slots=True)
class _Bearer:
    """A function that returns the header's value for the key that another function returns."""

    source: Callable[[], str | Awaitable[str]] = field(repr=False)

    def __call__(self) -> str | Awaitable[str]:
        try:
            key = self.source()
        except InvalidArgument as error:
            raise Unauthenticated(error.message) from error
        return _awaited(key) if inspect.isawaitable(key) else _bearer(key, _RESULT)


def checked_key(key: object, origin: str) -> str:
    """Return a key or token without white space around it. `origin` begins the message, which contains no key.

    Raises InvalidArgument for other values and for texts that are not one word of printable ASCII.
    """
    if not isinstance(key, str):
        raise InvalidArgument(f"{origin} must be a string, not {type(key).__name__}.")
    if not (word := key.strip()):
        raise InvalidArgument(f"{origin} is empty. Expected an API key.")
    if word.lower().startswith(f"{_SCHEME} "):
        raise InvalidArgument(f"{origin} begins with Bearer. Expected the API key alone.")
    if not all("!" <= character <= "~" for character in word):
        raise InvalidArgument(f"{origin} is not an API key. Expected one word of printable ASCII characters.")
    return word


def bearer(api_key: object) -> HeaderValue:
    """Return the value of the header `authorization`. Raises InvalidArgument like `checked_key`."""
    return _Bearer(api_key) if callable(api_key) else _bearer(api_key, "api_key")


def has_credentials(headers: Mapping[str, object]) -> bool:
    """Return whether one of the headers, with names in lower case, carries a key."""
    return not _CARRIERS.isdisjoint(headers)


def check_private(places: Sequence[Address], how_to_allow: str) -> None:
    """Raise InvalidArgument unless requests to the places are encrypted, or stay on this machine.

    `how_to_allow` names the setting that permits other places.
    """
    for place in places:
        if place.is_secure:
            continue
        if not place.is_local:
            problem = f"An API key for {place.target} would cross the network in plaintext."
        elif proxy := _proxy(place):
            problem = f"The proxy in {proxy} would get the API key for {place.target} in plaintext. Set NO_PROXY."
        else:
            continue
        secure = "https://" if place.is_rest else "grpcs://"
        raise InvalidArgument(f"{problem} Use {secure}, or {how_to_allow} if you trust the network.")


def _bearer(key: object, origin: str) -> str:
    return f"Bearer {checked_key(key, origin)}"


async def _awaited(key: Awaitable[str]) -> str:
    return _bearer(await key, _RESULT)


def _proxy(place: Address) -> str:
    """Return the environment variable whose proxy gets requests to a place, or an empty string."""
    if place.target.startswith("unix:") or not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # takes long to import

    schemes = ("http", "all") if place.is_rest else ("grpc", "https", "http")
    found = [scheme for scheme in schemes if scheme in getproxies()]
    return f"{found[0]}_proxy" if found and not proxy_bypass(place.authority) else ""
