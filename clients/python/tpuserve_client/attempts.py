"""The attempts of a call: which endpoint, which headers, how long, and whether to try again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tpuserve_client.address import Address
from tpuserve_client.endpoint import Endpoint, Endpoints
from tpuserve_client.errors import (
    CallContext,
    DeadlineExceeded,
    TpuserveError,
    Unauthenticated,
    Unavailable,
)
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.flights import Flights
from tpuserve_client.model import ModelSpec
from tpuserve_client.names import shown
from tpuserve_client.request_headers import HeaderSource, read_headers
from tpuserve_client.retry import Retry, RetryBudget, is_retryable
from tpuserve_client.steps import Evaluate, Join, Pause, Resolve, Send, Steps
from tpuserve_client.trace_context import trace_headers

_log: Final = logging.getLogger("tpuserve_client")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a call, for hooks and logs.

    `number` counts from 1 within the call. `path` is the gRPC method or the URL path. `error` is None for a success.
    `pause_s` is the wait before the next attempt in seconds, or None if this attempt is the last.
    """

    model: str | None
    path: str
    address: str
    number: int
    elapsed_s: float
    error: TpuserveError | None
    pause_s: float | None

    def __str__(self) -> str:
        what = f"{self.path} of {self.address}, attempt {self.number}, {self.elapsed_s * 1000:.1f} ms"
        if self.error is None:
            return f"{what}: ok"
        then = "gave up" if self.pause_s is None else f"retry in {self.pause_s:.3g} s"
        return f"{what}: {self.error.code.name}: {self.error.message}; {then}"


@dataclass(slots=True)
class Call:
    """Options and progress of one call. One thread or task uses it.

    `headers` are the call's own, and `sources` the functions that return header values. `began_s` and `expires_s` are
    times of the client's clock; `expires_s` is None without a deadline. `has_credentials` is True if the call has a
    key, or its connection a client certificate.
    """

    spec: ModelSpec | None
    address: str
    retry: Retry
    began_s: float
    limit_s: float | None
    headers: Mapping[str, str] = field(repr=False)
    sources: Mapping[str, HeaderSource] = field(repr=False)
    has_credentials: bool
    attempts: int = 0

    @property
    def model(self) -> str | None:
        return None if self.spec is None else str(self.spec)

    @property
    def expires_s(self) -> float | None:
        return None if self.limit_s is None else self.began_s + self.limit_s

    def for_part(self) -> "Call":
        """Return a call with the same options and deadline, and its own attempts."""
        return replace(self, attempts=0)


@dataclass(slots=True)
class _Tries:
    """Progress of one exchange of a call.

    `evaluated` are the last results of the call's header functions. `renewed` are newer ones, for the next attempt.
    """

    number: int = 0
    executions: int = 0
    endpoints: list[Endpoint] = field(default_factory=list)
    evaluated: dict[str, str] = field(default_factory=dict, repr=False)
    renewed: dict[str, str] | None = field(default=None, repr=False)
    has_renewed: bool = False


class Attempts:
    """Sends the exchanges of calls. Safe to share between threads.

    `on_attempt` is called after each attempt, in the thread or task of the call. Its exceptions are logged.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        budget: RetryBudget,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._budget = budget
        self._clock = clock
        self._jitter = jitter
        self._on_attempt = on_attempt
        self._lookups = Flights[Address]()

    def send(self, call: Call, exchange: Exchange) -> Steps[Reply]:
        """Send the exchange until it succeeds, or until the retry policy stops. Raises the last error."""
        tries = _Tries()
        while True:
            outcome = yield from self._attempt(call, exchange, tries, self.remaining_s(call))
            if isinstance(outcome, Reply):
                return outcome
            yield Pause(outcome)

    def once(self, call: Call, exchange: Exchange, timeout_s: float | None) -> Steps[Reply]:
        """Send the exchange within `timeout_s` seconds: once, or twice if the server refuses an expired token."""
        tries, began_s = _Tries(), self._clock()
        while True:
            left_s = None if timeout_s is None else timeout_s - (self._clock() - began_s)
            outcome = yield from self._attempt(call, exchange, tries, left_s, may_retry=False)
            if isinstance(outcome, Reply):
                return outcome

    def remaining_s(self, call: Call) -> float | None:
        """Return the seconds to the call's deadline, negative after it, or None without a deadline."""
        return None if call.limit_s is None else call.began_s + call.limit_s - self._clock()

    def add_context(self, error: TpuserveError, call: Call) -> None:
        """Add the call's address, model, number of attempts and limit to its error."""
        elapsed_s = self._clock() - call.began_s
        error.context = CallContext(
            call.address, call.model, call.attempts, elapsed_s, call.limit_s, call.has_credentials
        )

    def _attempt(
        self, call: Call, exchange: Exchange, tries: _Tries, timeout_s: float | None, *, may_retry: bool = True
    ) -> Steps[Reply | float]:
        """Return the reply, or the pause in seconds before the next attempt. Raises the error of the last attempt."""
        began_s = self._clock()
        self._left_s(timeout_s, began_s)
        tries.number += 1
        reached: Endpoint | None = None
        try:
            if self._endpoints.stale() is not None:
                yield from self._look_up_stale(call)
            endpoint = self._choose(call, tries)
            headers = trace_headers()
            if call.sources:
                tries.evaluated = tries.renewed or (yield from _evaluated(call))
                tries.renewed = None
                headers |= tries.evaluated
            headers |= call.headers
            left_s = self._left_s(timeout_s, began_s)
            call.attempts += 1
            call.address = str(endpoint)
            reached = endpoint
            reply = yield Send(endpoint, _with_headers(exchange, headers), left_s)
        except TpuserveError as error:
            pause_s = self._judge(call, tries, reached, error) if may_retry else None
            if reached is not None and isinstance(error, Unauthenticated):
                pause_s = yield from _renew(call, tries)
            self._report(call, exchange, began_s, error, pause_s)
            if pause_s is None:
                raise
            return pause_s
        self._endpoints.count_success(endpoint)
        self._budget.count_success()
        self._report(call, exchange, began_s, None, None)
        assert isinstance(reply, Reply)  # the drivers send a reply for each Send
        return reply

    def _left_s(self, timeout_s: float | None, began_s: float) -> float | None:
        """Return the rest of an attempt's time, of which lookups and header functions use some.

        Raises DeadlineExceeded if no time is left.
        """
        if timeout_s is None:
            return None
        if (left_s := timeout_s - (self._clock() - began_s)) <= 0:
            raise DeadlineExceeded("The deadline passed before the request was sent.")
        return left_s

    def _look_up_stale(self, call: Call) -> Steps[None]:
        while (place := self._endpoints.stale()) is not None:
            flight, is_leader = self._lookups.join(place)
            if is_leader:
                yield from self._look_up(place)
            elif self._endpoints.choose() is None:
                yield Join(flight.done, self.remaining_s(call))
                if not flight.done.done():
                    raise DeadlineExceeded(f"The address of {place.host} did not arrive before the deadline.")
            else:  # use the addresses of the last lookup meanwhile
                return

    def _choose(self, call: Call, tries: _Tries) -> Endpoint:
        endpoint = self._endpoints.choose(tries.endpoints)
        if endpoint is None:
            raise Unavailable(f"The lookup of {call.address} failed.")
        tries.endpoints.append(endpoint)
        return endpoint

    def _look_up(self, place: Address) -> Steps[None]:
        ips: tuple[str, ...] = ()
        try:
            assert place.host is not None  # only names are looked up
            ips = yield Resolve(place.host)
        except Unavailable as error:
            if self._endpoints.choose() is None:
                raise
            _log.warning("%s The client uses the addresses of the last lookup.", error.message)
        finally:
            self._endpoints.put_lookup(place, ips)
            self._lookups.land(place, None)

    def _judge(self, call: Call, tries: _Tries, endpoint: Endpoint | None, error: TpuserveError) -> float | None:
        """Count the failure. Return the pause before the next attempt in seconds, or None to stop.

        `endpoint` is None if the client sent no request.
        """
        if endpoint is not None:
            self._count(endpoint, error)
        tries.executions += error.may_have_run
        is_in_budget = not (is_retryable(error) or error.forbids_retry) or self._budget.count_failure()
        remaining_s = self.remaining_s(call)
        pause_s = call.retry.wait_s(error, tries.number, tries.executions, self._jitter(), remaining_s)
        if pause_s is None or not is_in_budget:
            return None
        has_other = error.retry_after_s is None and self._endpoints.have_other_than(tries.endpoints)
        return 0.0 if has_other else pause_s

    def _count(self, endpoint: Endpoint, error: TpuserveError) -> None:
        """Count the endpoint's failure, or its success if it refused the request itself."""
        if isinstance(error, Unavailable | DeadlineExceeded):
            self._endpoints.count_failure(endpoint)
        else:
            self._endpoints.count_success(endpoint)

    def _report(
        self, call: Call, exchange: Exchange, began_s: float, error: TpuserveError | None, pause_s: float | None
    ) -> None:
        if self._on_attempt is None and not _log.isEnabledFor(logging.DEBUG if pause_s is None else logging.INFO):
            return
        elapsed_s = self._clock() - began_s
        attempt = Attempt(call.model, exchange.path, call.address, call.attempts, elapsed_s, error, pause_s)
        _log.log(logging.DEBUG if pause_s is None else logging.INFO, "%s", attempt)
        if self._on_attempt is None:
            return
        try:
            self._on_attempt(attempt)
        except Exception:
            _log.exception("The hook on_attempt failed")


def _renew(call: Call, tries: _Tries) -> Steps[float | None]:
    """Return 0.0, the pause before another attempt, if the call's header functions return new values, else None.

    Answers once in an exchange, because a server that refuses two tokens also refuses a third. The server has not run
    the request, so this is no retry.
    """
    if not call.sources or tries.has_renewed:
        return None
    tries.has_renewed = True
    try:
        renewed = yield from _evaluated(call)
    except TpuserveError:  # the next attempt calls the function again, and raises its error
        return 0.0
    if renewed == tries.evaluated:
        return None
    tries.renewed = renewed
    return 0.0


def _evaluated(call: Call) -> Steps[dict[str, str]]:
    """Return the headers whose values the caller's functions return, for one attempt."""
    headers: dict[str, str] = {}
    for name, source in call.sources.items():
        try:
            value = yield Evaluate(source)
        except TpuserveError:
            raise
        except Exception as error:
            raise Unauthenticated(f"The function for the header {name} failed: {shown(error)}") from error
        headers |= read_headers({name: value})
    return headers


def _with_headers(exchange: Exchange, headers: dict[str, str]) -> Exchange:
    return replace(exchange, headers={**exchange.headers, **headers}) if headers else exchange
