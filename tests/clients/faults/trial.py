"""One scenario against one client: what the first call did, and how many calls the client needed to recover."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.faults.fault import Fault, Injection
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.scripted_upstream import Upstream
from tpuserve_client import Client, Retry, Tls

_LONGEST_PAUSE_S: Final = 5.0
MOST_CALLS: Final = 12
# These faults follow a response, so the call after it meets them.
_AFTER_RESPONSE: Final = (Fault.GOAWAY_AFTER_RESPONSE, Fault.CLOSE_AFTER_RESPONSE)
X: Final = np.array([[1, 2, 3, 4]], np.float32)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault that the first call meets, in its first `times` requests (None: in all of its requests)."""

    name: str
    injection: Injection
    times: int | None = 1
    timeout_s: float | None = 5.0
    retry: Mapping[str, Any] = field(default_factory=dict)  # values of several types
    protocols: tuple[str, ...] = ("grpc", "rest")
    # With TLS, the first call has no connection yet, and the proxy delays its handshake.
    is_tls: bool = False
    stall_s: float = 0.5


class PausingClock(Clock):
    """The real clock. It skips the pauses that are longer than 5 s, and counts them as passed."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        time.sleep(self._real(seconds))

    async def async_sleep(self, seconds: float) -> None:
        await asyncio.sleep(self._real(seconds))

    def _real(self, seconds: float) -> float:
        self.pauses_s.append(seconds)
        if seconds <= _LONGEST_PAUSE_S:
            return seconds
        self._skipped_s += seconds
        return 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The first call under the fault, and the calls after it until one succeeds, at most MOST_CALLS in all.

    `address` is `host:port` of the proxy. `outcomes` has the error of each call, or None for a success. The other
    numbers are the first call's: `attempts` is the client's own number, `requests` the proxy's, `executed` the
    upstream's. `seconds` include pauses that the clock skipped.
    """

    address: str
    outcomes: Sequence[Exception | None]
    attempts: int
    requests: int
    executed: int
    seconds: float

    @property
    def error(self) -> Exception | None:
        """Return the error of the first call."""
        return self.outcomes[0]

    @property
    def recovered_at(self) -> int | None:
        """Return the number of the first call that succeeded, or None."""
        return self.outcomes.index(None) + 1 if None in self.outcomes else None


def run_trial(scenario: Scenario, kind: str, protocol: str, upstream: Upstream) -> Trial:
    """Run `scenario` with a client whose connection and metadata are warm. `kind` is "sync" or "async"."""
    clock, server = PausingClock(), upstream.server
    tls = Tls(ca=upstream.ca) if scenario.is_tls else None
    with (
        proxied(upstream.addresses[protocol, scenario.is_tls], scenario.stall_s) as (proxy, place),
        make_client(kind, place, clock, timeout_s=scenario.timeout_s, retry=Retry(**scenario.retry), tls=tls) as client,
    ):
        if not scenario.is_tls:
            _predict(client)
        proxy.inject(scenario.injection, scenario.times)
        if scenario.injection in _AFTER_RESPONSE:
            _predict(client)
        server.served.clear()
        clock.pauses_s.clear()
        proxy.requests = 0
        started = clock()
        error = _predict(client)
        seconds = clock() - started
        attempts = getattr(error, "attempts", None) or 1 + len(clock.pauses_s)
        counts = attempts, proxy.requests, server.methods().count("Predict")
        proxy.heal()
        return Trial(place.rpartition("/")[2], [error, *_recovery(error, client)], *counts, seconds)


def _recovery(error: Exception | None, client: Client) -> Iterator[Exception | None]:
    calls = 1
    while error is not None and calls < MOST_CALLS:
        yield (error := _predict(client))
        calls += 1


def _predict(client: Client) -> Exception | None:
    """Return the error of a prediction, or None. Raises AssertionError for a wrong answer."""
    try:
        answer = client.predict("affine", {"x": X})
    except Exception as error:  # also errors outside the client's tree, which the tests and the table report
        return error
    np.testing.assert_array_equal(answer["y"], X * 2 + 1)
    return None
