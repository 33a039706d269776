"""Steps that the client's operations yield to their driver: all input, output and waiting of the client.

An operation is a generator. It yields a step and receives the step's result, or the step's TpuserveError. `Client` and
`AsyncClient` each have one driver, which carries out the steps by blocking or on the event loop.
"""

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tpuserve_client.endpoint import Endpoint
from tpuserve_client.exchange import Exchange


class Send(NamedTuple):
    """Send an exchange to an endpoint within `timeout_s` seconds (None: no limit). The result is its Reply."""

    endpoint: Endpoint
    exchange: Exchange
    timeout_s: float | None


class Pause(NamedTuple):
    """Wait for a time. The result is None."""

    seconds: float


class Join(NamedTuple):
    """Wait for another call's `future`, at most `timeout_s` seconds. The result is None in every case."""

    future: Future[None]
    timeout_s: float | None


class Resolve(NamedTuple):
    """Look up the addresses of a host name. The result is a tuple of IP addresses. Raises Unavailable."""

    host: str


class Evaluate(NamedTuple):
    """Call a function of the caller, such as one that returns a token. `AsyncClient` awaits an awaitable result."""

    function: Callable[[], str | Awaitable[str]]


Step: TypeAlias = Send | Pause | Join | Resolve | Evaluate
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Any, T]  # the type of a step's result depends on the step
