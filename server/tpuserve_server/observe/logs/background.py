"""BackgroundHandler: writes log lines on a thread, so that a reader of stderr that is slow or stuck delays nothing."""

import contextlib
import copy
import logging
import os
import queue
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tpuserve_formats.counted import counted
from tpuserve_server.observe.logs.log_format import ACCESS

MOST_PER_PERIOD = 10
PERIOD_S = 60.0
# Number of events to remember. Clients and models can cause many different ones.
_MOST_EVENTS = 256


class EventKind(NamedTuple):
    """Events that count as repeats: those with the same logger, level and message before its arguments."""

    logger: str
    level: int
    template: str


class Suppressed(NamedTuple):
    """Number of events of a kind that were suppressed within a period."""

    kind: EventKind
    repeats: int
    period_s: float


@dataclass(slots=True)
class _Period:
    ends_s: float
    count: int = 0


class RepeatLimit:
    """Admits some events of each kind in each period. The caller's lock guards all calls. Times are monotonic."""

    def __init__(self, most: int = MOST_PER_PERIOD, period_s: float = PERIOD_S) -> None:
        """Admit `most` events of a kind in a period, which begins with the first of them."""
        self._most = most
        self._period_s = period_s
        # In the order of their ends, because all are of the same length.
        self._periods: OrderedDict[EventKind, _Period] = OrderedDict()
        self._forgotten: list[Suppressed] = []

    def admits(self, kind: EventKind, now_s: float) -> bool:
        """Count an event, and return whether to write it. Call `take_ended` first."""
        period = self._periods.get(kind)
        if period is None:
            if len(self._periods) == _MOST_EVENTS:
                self._forgotten += self._end(next(iter(self._periods)))
            self._periods[kind] = period = _Period(now_s + self._period_s)
        period.count += 1
        return period.count <= self._most

    def take_ended(self, now_s: float) -> list[Suppressed]:
        """Forget the periods that have ended. Return those in which events were suppressed."""
        ended, self._forgotten = self._forgotten, []
        while self._periods and next(iter(self._periods.values())).ends_s <= now_s:
            ended += self._end(next(iter(self._periods)))
        return ended

    def take_all(self) -> list[Suppressed]:
        """Forget all periods. Return those in which events were suppressed."""
        return self.take_ended(float("inf"))

    def ends_s(self) -> float | None:
        """Return when the first period with suppressed events ends, or None if there is none."""
        return next((period.ends_s for period in self._periods.values() if period.count > self._most), None)

    def _end(self, kind: EventKind) -> Iterator[Suppressed]:
        count = self._periods.pop(kind).count - self._most
        if count > 0:
            yield Suppressed(kind, count, self._period_s)


# Events that wait for the thread. Later ones are dropped and counted. Lines of requests leave room for other events.
_MOST_WAITING = 4096
_MOST_BEFORE_ACCESS = 3072
# Characters of a message, and of a traceback, whose end is the more useful part.
_MOST_OF_MESSAGE = 8 * 1024
_MOST_OF_TRACEBACK = 32 * 1024
# Other processes that write to the same pipe do not break writes of up to this size (PIPE_BUF of Linux).
_ONE_WRITE_BYTES = 4096
# Wait of `flush` for the thread. A stuck reader delays the end of a process by this time.
FLUSH_TIMEOUT_S = 1.0

WRITER_NAME: Final = "log-writer"
_OWN_LOGGER: Final = "tpuserve_server.observe.logs"
_DROPPED: Final = "Dropped %d log events: the reader of stderr was too slow"
_TRACEBACKS: Final = logging.Formatter()

# A record to write, an event to set once all earlier records are written, or None to look at the repeats.
_Item: TypeAlias = logging.LogRecord | threading.Event | None


class BackgroundHandler(logging.Handler):
    """Limits repeats on the thread that logs, and formats and writes on its own thread. Never blocks, except `flush`.

    `_guard` guards the repeats and the numbers of dropped events. The thread owns `_pending`.
    """

    def __init__(
        self, descriptor: int, formatter: logging.Formatter, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the thread. It writes to `descriptor`, which must stay open."""
        super().__init__()
        self.setFormatter(formatter)
        self._descriptor = descriptor
        self._now_s = now_s
        self._repeats = RepeatLimit()
        # A signal handler or a finalizer may log while its thread holds the guard.
        self._guard = threading.RLock()
        # `put` of a SimpleQueue may be interrupted by another one on the same thread, for the same reason.
        self._waiting: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        # Events that were dropped since the start, and those of them that the log reports.
        self.dropped = 0
        self._reported = 0
        self._pending = bytearray()
        # A daemon: a write to a stuck reader must not keep the process from its end.
        threading.Thread(target=self._run, name=WRITER_NAME, daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record without the lock of other handlers, which `logging.shutdown` holds while it waits."""
        accepted = bool(self.filter(record))
        if accepted:
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, unless it repeats too often or too many wait. Raises nothing."""
        try:
            self._admit(record)
        except Exception as error:  # A message without a text must not fail the code that logs it.
            with self._guard:
                self._put(_unrenderable(record, error))

    def _admit(self, record: logging.LogRecord) -> None:
        now_s = self._now_s()
        with self._guard:
            self._put_all(_summaries(self._repeats.take_ended(now_s)))
            if record.levelno >= logging.CRITICAL or record.name == ACCESS:
                self._put(record)
                return
            waits = self._repeats.ends_s() is None
            if self._repeats.admits(EventKind(record.name, record.levelno, str(record.msg)), now_s):
                self._put(record)
            elif waits:
                self._waiting.put(None)

    def flush(self) -> None:
        """Wait until the lines of all earlier events are written, for a limited time."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Write the summaries of all repeats, and wait like `flush`."""
        with self._guard:
            summaries = _summaries(self._repeats.take_all())
            self._put_all(summaries)
        if summaries:
            self.flush()
        super().close()

    def _put_all(self, records: Iterable[logging.LogRecord]) -> None:
        for record in records:
            self._put(record)

    def _put(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() < (_MOST_BEFORE_ACCESS if record.name == ACCESS else _MOST_WAITING):
            self._report_dropped()
            self._waiting.put(_detached(record))
        else:
            self.dropped += 1

    def _report_dropped(self) -> None:
        """Queue the number of dropped events, behind those that were queued before them."""
        if self.dropped > self._reported:
            self._waiting.put(_made(_OWN_LOGGER, logging.WARNING, _DROPPED % (self.dropped - self._reported)))
            self._reported = self.dropped

    def _run(self) -> None:
        while True:
            try:
                self._take(self._waiting.get(timeout=self._wait_s()))
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._take(self._waiting.get_nowait())
            except queue.Empty:
                with self._guard:
                    self._put_all(_summaries(self._repeats.take_ended(self._now_s())))
            self._write()
            with self._guard:
                self._report_dropped()

    def _wait_s(self) -> float | None:
        """Return the time until the next summary is due, or None for a wait for the next event."""
        with self._guard:
            ends_s = self._repeats.ends_s()
        return None if ends_s is None else max(ends_s - self._now_s(), 0.0)

    def _take(self, item: _Item) -> None:
        if isinstance(item, logging.LogRecord):
            self._append(item)
        elif item is not None:
            self._write()
            item.set()

    def _append(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode()
        except Exception as error:  # The top of the thread. An event that cannot be rendered must not end it.
            line = f"{self.format(_unrenderable(record, error))}\n".encode()
        if len(self._pending) + len(line) > _ONE_WRITE_BYTES:
            self._write()
        self._pending += line

    def _write(self) -> None:
        pending, self._pending = self._pending, bytearray()
        _write_all(self._descriptor, pending)


def _write_all(descriptor: int, data: bytearray) -> None:
    """Write all data, and wait for a slow reader. Lines for a reader that is gone are lost."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # Another process has made the descriptor non-blocking.
            _wait_for_room(descriptor)
        except OSError:
            return


def _wait_for_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def _detached(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that holds no arguments and no frames, with a message and a traceback of limited size."""
    if not (record.args or record.exc_info or len(str(record.msg)) > _MOST_OF_MESSAGE):
        return record
    detached = copy.copy(record)
    detached.msg, detached.args = _message(record), None
    if record.exc_info:
        traceback = record.exc_text or _TRACEBACKS.formatException(record.exc_info)
        # `exc_text` would be cleared by structlog.
        detached.__dict__["traceback"] = traceback[-_MOST_OF_TRACEBACK:]
        detached.exc_info = detached.exc_text = None
    return detached


def _message(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception:  # The arguments do not fit the message, or have no text. The event is more useful than an error.
        message = _unformatted(record)
    return message if len(message) <= _MOST_OF_MESSAGE else f"{message[:_MOST_OF_MESSAGE]}…"


def _unformatted(record: logging.LogRecord) -> str:
    try:
        return f"{record.msg} {record.args!r}"
    except Exception as error:  # An object without a text, such as one that is half destroyed.
        return f"{record.msg} (its arguments have no text: {type(error).__name__})"


def _summaries(suppressed: Iterable[Suppressed]) -> list[logging.LogRecord]:
    return [
        _made(
            kind.logger, kind.level, f""""{kind.template}" repeated {counted(count, "more time")} in {period_s:g} s"""
        )
        for kind, count, period_s in suppressed
    ]


def _unrenderable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    message = f"Cannot render an event of {record.name!r}: {type(error).__name__}"
    return _made(_OWN_LOGGER, logging.ERROR, message)


def _made(logger: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(logger, level, __file__, 0, message, None, None)
