"""Measurements of the front-end processes: each sends its share, and the engine adds them all to its own.

A front-end sends a share each second, and another when the engine asks, which it does before it renders a page.
"""

import asyncio
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Final

from tpuserve_server.frontends.shared_work import SharedWork
from tpuserve_server.hosts.envoy.fleet_figures import FleetFigures
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.metrics.measurements import Measurements
from tpuserve_server.telemetry.slow_requests import SlowRequests

# Kinds of messages. Each begins with the number of a question, or with 0 if there was none.
# From a front-end: a pickle of its Share and of its new slow requests.
SHARE: Final = 48
# From the engine: whether it also wants the figures of the host.
ASK: Final = 49
# From a front-end: whether its host reported figures, and their page, or the reason against it, in UTF-8.
HOST_FIGURES: Final = 50

_NUMBER: Final = struct.Struct("<I")
_QUESTION: Final = struct.Struct("<I?")
_PERIOD_S: Final = 1.0
# A front-end that is busy for longer than this is missing with its last requests.
COLLECT_S: Final = 0.2


class ShareSender:
    """Sends what a front-end process measures. The event loop's thread owns it."""

    def __init__(
        self, connection: Connection, metrics: Measurements, slow: SlowRequests, period_s: float = _PERIOD_S
    ) -> None:
        """Send to the engine over `connection`, once it has started with `handlers`."""
        self._connection = connection
        self._metrics = metrics
        self._slow = slow
        self._period_s = period_s
        self._read: Callable[[], str] = _no_figures
        self._reading = SharedWork[str]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers of the engine's messages, by kind."""
        return {ASK: self._answer}

    def add_figures(self, read: Callable[[], str]) -> None:
        """Send the figures of the host from now on. `read` blocks, and is called on a worker thread."""
        self._read = read

    def start(self) -> None:
        """Send a share now and each second. Call it on the event loop."""
        self._send(0)
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self.start)

    async def stop(self) -> None:
        """Send the last share, and wait until it has left. Call it before the connection closes."""
        if self._timer is not None:
            self._timer.cancel()
        self._send(0)
        await self._connection.drain()

    def _send(self, number: int) -> None:
        share = (self._metrics.take(), self._slow.take_new())
        self._connection.send(SHARE, _NUMBER.pack(number) + pickle.dumps(share, pickle.HIGHEST_PROTOCOL))

    def _answer(self, question: memoryview) -> None:
        number, wants_figures = _QUESTION.unpack(question)
        self._send(number)
        if wants_figures:
            task = asyncio.create_task(self._send_figures(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_figures(self, number: int) -> None:
        try:
            text, is_read = await self._reading.result(self._read), True
        except Exception as error:  # The engine reports every error of the host in place of its figures.
            text, is_read = str(error) or type(error).__name__, False
        self._connection.send(HOST_FIGURES, _QUESTION.pack(number, is_read) + text.encode())


class _FrontEnd:
    """One front-end process, and the answers that it owes, by their kind and the number of the question."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._owed: dict[tuple[int, int], asyncio.Future[None]] = {}

    def ask(self, number: int, *, with_figures: bool) -> "list[asyncio.Future[None]]":
        kinds = (SHARE, HOST_FIGURES) if with_figures else (SHARE,)
        owed = {(kind, number): asyncio.get_running_loop().create_future() for kind in kinds}
        self._owed.update(owed)
        self.connection.send(ASK, _QUESTION.pack(number, with_figures))
        return list(owed.values())

    def answered(self, kind: int, number: int) -> None:
        owed = self._owed.pop((kind, number), None)
        if owed is not None and not owed.done():
            owed.set_result(None)

    def waive(self, number: int) -> None:
        """Wait no longer for the answers to a question."""
        self.answered(SHARE, number)
        self.answered(HOST_FIGURES, number)

    def end(self) -> None:
        for kind, number in list(self._owed):
            self.answered(kind, number)


class ShareReceiver:
    """Adds what the front-end processes measure to the measurements of the engine. The event loop's thread owns it."""

    def __init__(self, metrics: Measurements, slow: SlowRequests, figures: FleetFigures) -> None:
        """Add shares to `metrics`, slow requests to `slow`, and the figures of Envoys to `figures`."""
        self._metrics = metrics
        self._slow = slow
        self._figures = figures
        self._front_ends: dict[int, _FrontEnd] = {}
        self._sources = 0
        self._questions = 0

    def open(self, connection: Connection) -> tuple[Mapping[int, Handler], Callable[[], None]]:
        """Return the handlers of a front-end's messages, and a function to call once when its connection ends."""
        self._sources += 1
        source = self._sources
        front_end = self._front_ends[source] = _FrontEnd(connection)

        def add(message: memoryview) -> None:
            share, slow = pickle.loads(message[_NUMBER.size :])  # From a process of this server.
            self._metrics.add(share, source)
            for record in slow:
                if self._slow.wants(record.latency_s, record.ended_s, record.code):
                    self._slow.watch(record)
            front_end.answered(SHARE, *_NUMBER.unpack_from(message))

        def put(message: memoryview) -> None:
            number, is_read = _QUESTION.unpack_from(message)
            text = bytes(message[_QUESTION.size :]).decode()
            (self._figures.put if is_read else self._figures.fail)(source, text)
            front_end.answered(HOST_FIGURES, number)

        return {SHARE: add, HOST_FIGURES: put}, lambda: self._end(source)

    async def collect(self, timeout_s: float = COLLECT_S, *, with_figures: bool = True) -> None:
        """Wait until all that the front-ends have measured so far is added, for at most `timeout_s`.

        Later answers count as soon as they arrive. `with_figures` includes those of the hosts.
        """
        self._questions += 1
        asked = list(self._front_ends.values())
        owed = [one for each in asked for one in each.ask(self._questions, with_figures=with_figures)]
        number = self._questions
        try:
            if owed:
                await asyncio.wait(owed, timeout=timeout_s)
        finally:
            for front_end in asked:
                front_end.waive(number)

    async def collect_shares(self) -> None:
        """Collect without the figures of the hosts."""
        await self.collect(with_figures=False)

    def _end(self, source: int) -> None:
        self._front_ends.pop(source).end()
        self._metrics.end_source(source)
        self._figures.end(source)


def _no_figures() -> str:
    return ""
