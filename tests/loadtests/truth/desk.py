"""Desk of the scripted server: decides when and how each prediction ends, and writes the log. It knows no protocol."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from heapq import heapreplace
from typing import Final

from tests.loadtests.truth.request_log import OK, Entry
from tests.loadtests.truth.script import REFUSAL_S, REFUSALS, Fault, Script, Wrong

_SEED: Final = 20
_MEMORY_BYTES: Final = 30_000_000
_QUICK: Final = REFUSALS | {Fault.REFUSED}

# Called at the end of a prediction, unless the connection ended first. The fault or the kind of wrong response.
Reply = Callable[[Fault | Wrong | None], None]


# The body of a prediction, and the length of its JSON header, or 0 if it has no header.
Request = tuple[bytes, int]


class Desk:
    """Desk of one server. Belongs to the event loop."""

    def __init__(self, script: Script, loop: asyncio.AbstractEventLoop, die: Callable[[], None]) -> None:
        """Set up the desk. `die` ends the process."""
        self.entries: list[Entry] = []
        # The last request by model and protocol, for a response that belongs to another request.
        self.latest: dict[tuple[str, str], Request] = {}
        self._script = script
        self._loop = loop
        self._die = die
        self._random = random.Random(_SEED)
        self._free_s = [0.0] * script.slots
        self._numbers: Counter[str] = Counter()  # predictions of each script
        self._digests: set[int] = set()
        self._in_flight = 0
        # Look-ups in the response cache by model and outcome.
        self.cached: Counter[tuple[str, str]] = Counter()
        self._began_s = 0.0

    def memory_bytes(self) -> int:
        """Return the memory that the script states. The process's own grows with the log."""
        return _MEMORY_BYTES + self._script.leak_bytes * len(self.entries)

    def accept(
        self, protocol: str, model: str, connection: int, arrived_s: float, request: bytes, reply: Reply
    ) -> Entry:
        """Take a prediction that was read completely at `arrived_s`, and schedule its end."""
        if not self.entries:
            self._begin(arrived_s)
        script, own = self._script, model if model in self._script.models else ""
        script = script.models.get(model, script)
        self._numbers[own] += 1
        number, digest = self._numbers[own], hash(request)
        is_cached = bool(script.cached_s) and digest in self._digests
        self._digests.add(digest)
        if script.cached_s:
            self.cached[model, "hits" if is_cached else "misses"] += 1
        fault = script.fault(number)
        if fault in _QUICK:
            service_s = REFUSAL_S
        else:
            service_s = script.cached_s if is_cached else self._service_s(script, number, arrived_s - self._began_s)
        due_s = self._held(self._start_s(arrived_s, service_s) + service_s)
        entry = Entry(len(self.entries) + 1, protocol, model, connection, arrived_s, service_s, due_s, digest=digest)
        self.entries.append(entry)
        self._in_flight += 1
        wrong = script.wrongness(number)
        if script.wrong_above and self._in_flight > script.wrong_above:
            wrong = Wrong.VALUE
        if fault is Fault.SILENT:
            entry.status = fault
        else:
            self._loop.call_at(due_s, self._end, entry, fault or wrong, reply)
        return entry

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        if self._script.freeze_s:
            # A blocked event loop neither reads nor writes, like a stopped process.
            self._loop.call_at(now_s + self._script.freeze_at_s, time.sleep, self._script.freeze_s)
        if self._script.die_at_s:
            self._loop.call_at(now_s + self._script.die_at_s, self._die)

    def _service_s(self, script: Script, number: int, elapsed_s: float) -> float:
        slow_s, factor = script.slow_s(number), script.factor(elapsed_s)
        if slow_s is not None:
            return slow_s * factor
        service_s = script.service_s + script.growth * elapsed_s + script.spread_s * self._random.random()
        return service_s if script.slow else service_s * factor

    def _start_s(self, arrived_s: float, service_s: float) -> float:
        """Return the start of the service, and occupy the slot that is free first."""
        if not self._free_s:
            return arrived_s
        start_s = max(arrived_s, self._free_s[0])
        heapreplace(self._free_s, start_s + service_s)
        return start_s

    def _held(self, due_s: float) -> float:
        script = self._script
        start_s = self._began_s + script.hold_at_s
        return start_s + script.hold_s if script.hold_s and 0 <= due_s - start_s < script.hold_s else due_s

    def _end(self, entry: Entry, outcome: Fault | Wrong | None, reply: Reply) -> None:
        self._in_flight -= 1
        if entry.status:  # the connection ended first
            return
        # Before the response is written, so that no client can read it earlier.
        entry.finished_s = time.monotonic()
        entry.status = OK if outcome is None else outcome
        reply(outcome)


def end_pending(entries: list[Entry], status: str) -> None:
    """End the pending predictions of a connection."""
    for entry in entries:
        if not entry.status:
            entry.status, entry.finished_s = status, time.monotonic()
