"""Settings of a client: a value that can be pickled, from which `Client` and `AsyncClient` are built."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from tpuserve_client.address import Address, parse_addresses
from tpuserve_client.attempts import Attempt
from tpuserve_client.credentials import AUTHORIZATION, ApiKey, bearer, check_private
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.limits import Pool, checked_timeout
from tpuserve_client.names import shown
from tpuserve_client.request_headers import HeaderValue, split_headers
from tpuserve_client.retry import Retry
from tpuserve_client.tls import Tls

DEFAULT_TIMEOUT_S: Final = 30.0
Jitter: TypeAlias = Callable[[], float]
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a client, without the clock that tests replace.

    Raises InvalidArgument for addresses, headers, certificates and timeouts that the client cannot use.
    """

    address: str | Sequence[str]
    tls: Tls | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict, repr=False)
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    retry: Retry = field(default_factory=Retry)
    pool: Pool = field(default_factory=Pool)
    resolve_all: bool = False
    on_attempt: Callable[[Attempt], None] | None = None
    api_key: ApiKey | None = field(default=None, repr=False)
    allow_plaintext_key: bool = False

    def __post_init__(self) -> None:
        _ = self.places
        split_headers(self.headers)
        split_headers(self.sent_headers)
        checked_timeout(self.timeout_s)
        for name, value, kind in (("retry", self.retry, Retry), ("pool", self.pool, Pool)):
            if not isinstance(value, kind):
                raise InvalidArgument(f"{name} must be a {kind.__name__}, not {shown(value)}.")
        if self.tls is not None:
            self._check_tls(self.tls)
        if self.api_key is not None and not self.allow_plaintext_key:
            check_private(self.places, "set allow_plaintext_key=True")

    def arguments(self) -> dict[str, Any]:
        """Return the settings as arguments of `Client`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def places(self) -> tuple[Address, ...]:
        """The parsed addresses: at least one, all of the same protocol."""
        return parse_addresses(self.address)

    @property
    def sent_headers(self) -> dict[str, HeaderValue]:
        """The headers, and the one that carries the API key. Raises InvalidArgument if both set it."""
        if self.api_key is None:
            return dict(self.headers)
        if any(name.lower() == AUTHORIZATION for name in self.headers):
            raise InvalidArgument(f"api_key and the header {AUTHORIZATION} exclude each other. Set one of them.")
        return {**self.headers, AUTHORIZATION: bearer(self.api_key)}

    def _check_tls(self, tls: Tls) -> None:
        if not isinstance(tls, Tls):
            raise InvalidArgument(f"tls must be a Tls, not {shown(tls)}.")
        for place in self.places:
            if not place.is_secure:
                secure = "oip+grpcs:// or oip+https://" if place.is_oip else "grpcs:// or https://"
                raise InvalidArgument(f"{place.target} is an address without TLS. Use {secure}.")
        tls.check()


@dataclass(frozen=True, slots=True)
class Timing:
    """Sources of time and randomness. `clock` returns monotonic seconds; `jitter` draws uniformly from [0, 1)."""

    clock: Clock = time.monotonic
    jitter: Jitter = random.random
