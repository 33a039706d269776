"""Overload in virtual time: clients with deadlines, a host that decodes and encodes, and a queue before a device.

The host is an event loop: it serves decodings, encodings and refusals one at a time, first come first served.
Everything runs on a `Timeline` without threads, except where a `Line` is the real batcher.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# The client library's policy (tpuserve_client/retry.py): full jitter, doubled after each attempt.
FIRST_BACKOFF_S = 0.1
_ROUNDING_S = 1e-9


class Timeline(Protocol):
    """A virtual clock with events."""

    def monotonic_s(self) -> float:
        """Return the seconds since the start."""
        ...

    def at(self, at_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call back at `at_s`."""
        ...


class EventTimeline:
    """A Timeline that runs its own events, in order of time and then of registration."""

    def __init__(self) -> None:
        """Start at 0 s without events."""
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._numbers = itertools.count()

    def monotonic_s(self) -> float:
        """Return the seconds since the start."""
        return self._now_s

    def at(self, at_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call back at `at_s`."""
        heapq.heappush(self._events, (at_s, next(self._numbers), callback, args))

    def run(self) -> None:
        """Run all events and their consequences."""
        while self._events:
            self._now_s, _, callback, args = heapq.heappop(self._events)
            callback(*args)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a request of one row. `due_s` is the client's deadline, `inf` if it has none.

    `server_due_s` is the deadline as the server knows it. `number` counts from 0. `ended` is set once the client has a
    response, an error, or has given up.
    """

    sent_s: float
    due_s: float
    kind: int
    number: int = 0
    server_due_s: float = 0.0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds that the host needs to decode a request, to encode a response, and to refuse a request."""

    decode_s: float = 0.0
    encode_s: float = 0.0
    refuse_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Open arrivals: `rate` requests per second for `seconds`, and retries of each failed attempt.

    `timeouts_s` are the deadlines of the kinds of requests, in equal shares, `inf` for none. Responses before
    `warm_s` do not count.
    """

    rate: float
    seconds: float
    timeouts_s: Sequence[float]
    retries: int = 0
    warm_s: float = 0.0


class Line(Protocol):
    """The queue and the device behind the host."""

    def refuses(self, attempt: Attempt) -> float | None:
        """Return the retry hint in seconds for an attempt that would be refused before decoding, or None."""
        ...

    def submit(self, attempt: Attempt) -> float | None:
        """Queue an attempt, or return the retry hint in seconds if it is refused."""
        ...

    def answered(self, attempt: Attempt, *, late: bool) -> None:
        """Record that a response went out, in time or late, as far as the server knows."""
        ...


@dataclass(slots=True)
class Tally:
    """Responses in time per kind, and failures, within the window that counts."""

    good: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    late: int = 0
    latencies_s: list[float] = field(default_factory=list)


class Clients:
    """Sends a load, gives up at the deadlines, and retries failures."""

    def __init__(self, timeline: Timeline, load: Load, send: Callable[[Attempt], None], seed: int) -> None:
        """Schedule the first arrival. `send` delivers an attempt to the host."""
        self.tally = Tally()
        self._timeline = timeline
        self._load = load
        self._send = send
        self._random = random.Random(seed)
        self._next(0.0)

    def receive(self, attempt: Attempt) -> None:
        """Take a response."""
        if attempt.ended:
            return
        attempt.ended = True
        now_s = self._timeline.monotonic_s()
        if self._counts(now_s):
            self.tally.good[attempt.kind] = self.tally.good.get(attempt.kind, 0) + 1
            self.tally.latencies_s.append(now_s - attempt.sent_s)

    def refused(self, attempt: Attempt, hint_s: float) -> None:
        """Take a refusal with a retry hint in seconds."""
        if attempt.ended:
            return
        attempt.ended = True
        self.tally.refused += self._counts(self._timeline.monotonic_s())
        self._retry(attempt, hint_s)

    def _next(self, after_s: float) -> None:
        at_s = after_s + self._random.expovariate(self._load.rate)
        if at_s < self._load.seconds:
            self._timeline.at(at_s, self._arrive, at_s)

    def _arrive(self, at_s: float) -> None:
        self._attempt(self._random.randrange(len(self._load.timeouts_s)), 0)
        self._next(at_s)

    def _attempt(self, kind: int, number: int) -> None:
        now_s = self._timeline.monotonic_s()
        attempt = Attempt(now_s, now_s + self._load.timeouts_s[kind], kind, number)
        if attempt.due_s < float("inf"):
            self._timeline.at(attempt.due_s + _ROUNDING_S, self._give_up, attempt)
        self._send(attempt)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        self.tally.late += self._counts(self._timeline.monotonic_s())
        self._retry(attempt, 0.0)

    def _retry(self, attempt: Attempt, hint_s: float) -> None:
        now_s = self._timeline.monotonic_s()
        if attempt.number < self._load.retries and now_s < self._load.seconds:
            backoff_s = self._random.random() * FIRST_BACKOFF_S * 2**attempt.number
            self._timeline.at(now_s + max(backoff_s, hint_s), self._attempt, attempt.kind, attempt.number + 1)

    def _counts(self, now_s: float) -> bool:
        return self._load.warm_s <= now_s < self._load.seconds


class Host:
    """One event loop. It sees an attempt only when the attempts and responses before it are done.

    It counts a deadline from the moment at which it begins to decode.
    """

    def __init__(self, timeline: Timeline, costs: HostCosts) -> None:
        """Set `clients` and `line` before the first arrival."""
        self._timeline = timeline
        self._costs = costs
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._busy = self._working = False
        self.clients: Clients
        self.line: Line

    def send(self, attempt: Attempt) -> None:
        """Take an attempt from the network."""
        self._add(self._begin, attempt)

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback of the server behind everything that waits, like an event loop."""
        self._add(callback, *args)

    def respond(self, attempt: Attempt) -> None:
        """Encode and send a response. Called by a callback of the server, which then takes as long."""
        self._encode(attempt)

    def complete(self, attempts: Sequence[Attempt]) -> None:
        """Encode and send the responses of a batch. An attempt without a deadline left costs nothing."""
        for attempt in attempts:
            self._add(self._encode, attempt)

    def drop(self, attempt: Attempt, hint_s: float) -> None:
        """Refuse an attempt that was queued."""
        self._add(self._refuse, attempt, hint_s)

    def _add(self, step: Callable[..., object], *args: object) -> None:
        self._waiting.append((step, args))
        self._work()

    def _work(self) -> None:
        if self._working:
            # A step has added another.
            return
        self._working = True
        while self._waiting and not self._busy:
            step, args = self._waiting.popleft()
            step(*args)
        self._working = False

    def _spend(self, seconds: float, then: Callable[..., object], *args: object) -> None:
        if not seconds:
            then(*args)
            return
        self._busy = True
        self._timeline.at(self._timeline.monotonic_s() + seconds, self._end, then, args)

    def _end(self, then: Callable[..., object], args: tuple[object, ...]) -> None:
        then(*args)
        self._busy = False
        self._work()

    def _begin(self, attempt: Attempt) -> None:
        attempt.server_due_s = self._timeline.monotonic_s() + attempt.due_s - attempt.sent_s
        hint_s = self.line.refuses(attempt)
        if hint_s is not None:
            self._spend(self._costs.refuse_s, self.clients.refused, attempt, hint_s)
        else:
            self._spend(self._costs.decode_s, self._submit, attempt)

    def _submit(self, attempt: Attempt) -> None:
        hint_s = self.line.submit(attempt)
        if hint_s is not None:
            self._add(self._refuse, attempt, hint_s)

    def _refuse(self, attempt: Attempt, hint_s: float) -> None:
        self._spend(self._costs.refuse_s, self.clients.refused, attempt, hint_s)

    def _encode(self, attempt: Attempt) -> None:
        self._spend(self._costs.encode_s, self._respond, attempt)

    def _respond(self, attempt: Attempt) -> None:
        self.clients.receive(attempt)
        self.line.answered(attempt, late=self._timeline.monotonic_s() > attempt.server_due_s + _ROUNDING_S)
