"""Steps that the client's operations yield to their driver: all input, output and waiting of the client.

An operation is a generator. It yields a step and receives the step's result, or the step's TpuserveError. `Client` and
`AsyncClient` each have one driver, which carries out the steps by blocking or on the event loop.
"""

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tpuserve_client.endpoint import Endpoint
from tpuserve_client.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Send:
    """Send an exchange to an endpoint within `timeout_s` seconds (None: no limit). The result is its Reply."""

    endpoint: Endpoint
    exchange: Exchange
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a time. The result is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Join:
    """Wait for another call's `future`, at most `timeout_s` seconds. The result is None in every case."""

    future: Future[None]
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Look up the addresses of a host name. The result is a tuple of IP addresses. Raises Unavailable."""

    host: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Call a function of the caller, such as one that returns a token. `AsyncClient` awaits an awaitable result."""

    function: Callable[[], str | Awaitable[str]]


Step: TypeAlias = Send | Pause | Join | Resolve | Evaluate
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Any, T]  # the type of a step's result depends on the step
