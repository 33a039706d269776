"""TraceExport: takes traced requests from the event loop, and exports their spans on a separate thread."""

import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Protocol

from tpuserve_server.core.terms.batch_run import BatchRun
from tpuserve_server.core.terms.errors import Code, counted
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.requests.request_record import RequestRecord, started_runs
from tpuserve_server.observe.requests.trace_context import TraceContext
from tpuserve_server.observe.tracing.message import (
    SERVER,
    SERVICE_NAME,
    Children,
    SpanId,
    Value,
    attribute,
    link,
    rare_attribute,
    request,
    resource,
    scope,
    span,
    version,
)
from tpuserve_server.observe.tracing.receiver_reply import ExportError, Rejection
from tpuserve_server.observe.tracing.transport import RetryingSender

_NANOSECONDS: Final = 1e9
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
# Numbers of the latest exported batches, to which no link can be added any more.
_MOST_EXPORTED: Final = 4096


class TraceMetrics(Protocol):
    """Counter of traced requests by outcome. Cheap and thread-safe."""

    def requests_traced(self, *, outcome: str, count: int) -> None:
        """Count requests: `exported`, or dropped as `rate`, `queue_full`, `export_failed` or `rejected`."""
        ...


@dataclass(slots=True)
class _Batch:
    """A batch. `offset_ns` is the difference of times since 1970 to those of `Clock.monotonic_s`."""

    run: BatchRun
    servable: ServableId
    id_: SpanId
    offset_ns: int
    requests: list[SpanId] = field(default_factory=list)


class BatchSpans:
    """Collects the requests of each batch for at least a tick, because they may end in different ones.

    A request that ends even later links to its batch, but the batch has no link to it. One thread owns it.
    """

    def __init__(self) -> None:
        """Start without batches."""
        self._key = os.urandom(32)
        self._current: dict[int, _Batch] = {}
        self._previous: dict[int, _Batch] = {}
        self._exported: dict[int, None] = {}

    @property
    def are_pending(self) -> bool:
        """Whether batches wait for their export."""
        return bool(self._current or self._previous)

    def add(self, run: BatchRun, servable: ServableId, request: SpanId, offset_ns: int) -> SpanId:
        """Note that the request with the span `request` ran in a batch, and return the batch's span."""
        number = run.number
        batch = self._previous.get(number) or self._current.get(number)
        if batch is None:
            id_ = self._id(number)
            if number in self._exported:
                return id_
            batch = self._current[number] = _Batch(run, servable, id_, offset_ns)
        batch.requests.append(request)
        return batch.id_

    def tick(self) -> Iterator[bytes]:
        """Yield the spans of the batches that were there at the previous tick, and forget them."""
        ended, self._previous, self._current = self._previous, self._current, {}
        for number, batch in ended.items():
            yield _span(batch)
            self._exported[number] = None
            if len(self._exported) > _MOST_EXPORTED:
                del self._exported[next(iter(self._exported))]

    def _id(self, number: int) -> SpanId:
        """Return the same identifiers each time: a later request then links to a batch that was exported."""
        size = _TRACE_BYTES + _SPAN_BYTES
        digest = hashlib.blake2b(number.to_bytes(8, "big"), key=self._key, digest_size=size).digest()
        return SpanId(digest[:_TRACE_BYTES], digest[_TRACE_BYTES:])


def _span(batch: _Batch) -> bytes:
    run = batch.run
    # A batch that still runs has no end: its requests ended at their deadline.
    started_s, ended_s = run.started_s, run.ended_s or run.begun_s or run.started_s
    return span(
        batch.id_,
        "batch",
        batch.offset_ns + int(started_s * _NANOSECONDS),
        batch.offset_ns + int(ended_s * _NANOSECONDS),
        attribute("tpuserve.model", batch.servable.name),
        attribute("tpuserve.version", batch.servable.version),
        rare_attribute("tpuserve.batch.number", run.number),
        attribute("tpuserve.batch.requests", run.requests),
        attribute("tpuserve.batch.rows", run.rows),
        attribute("tpuserve.batch.bucket", run.bucket),
        attribute("tpuserve.batch.padding", max(run.bucket - run.rows, 0)),
        attribute("tpuserve.batch.departure", run.departure.name.lower()),
        attribute("tpuserve.reason", f"waited {run.departure.value}"),
        *map(link, batch.requests),
        is_error=run.failed,
    )


NANOSECONDS: Final = 1e9
# Faults of the server, not of the client (OpenTelemetry's semantic conventions for gRPC servers).
_FAULTS: Final = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)


def request_spans(record: RequestRecord, trace: TraceContext, batches: BatchSpans) -> list[bytes]:
    """Return the spans of a traced request, and note it in the batches that it ran in."""
    id_ = SpanId(bytes.fromhex(trace.trace_id), bytes.fromhex(trace.span_id))
    # The difference between times since 1970 and those of `Clock.monotonic_s`.
    offset_ns = int(record.ended_unix_s * NANOSECONDS) - int(record.ended_s * NANOSECONDS)
    *stages, total = record.stages
    spans = [
        span(
            id_,
            record.method,
            offset_ns + int(total.started_s * NANOSECONDS),
            offset_ns + int(record.ended_s * NANOSECONDS),
            _attributes(record.protocol, record.code, record.model, record.version, record.signature, record.is_cached),
            rare_attribute("tpuserve.request_id", record.request_id) if record.request_id else b"",
            kind=SERVER,
            parent=bytes.fromhex(trace.parent_id),
            is_parent_remote=bool(trace.parent_id),
            state=trace.state,
            is_error=record.code in _FAULTS,
        )
    ]
    links = _links(record, id_, offset_ns, batches)
    children = Children(id_, trace.state)
    for name, stage_s, duration_s, reason in stages:
        started_ns = offset_ns + int(stage_s * NANOSECONDS)
        parts = (rare_attribute("tpuserve.reason", reason) if reason else b"") + links.get(name, b"")
        spans.append(children.span(name, started_ns, started_ns + int(duration_s * NANOSECONDS), parts))
    return spans


def _links(record: RequestRecord, id_: SpanId, offset_ns: int, batches: BatchSpans) -> dict[str, bytes]:
    """Return the links to batches by the name of the stage that ran them."""
    several = len(record.times) > 1
    return {
        f"step{position}.execute" if several else "execute": b"".join(
            link(batches.add(run, times.servable, id_, offset_ns)) for run in started_runs(times)
        )
        for position, times in enumerate(record.times, start=1)
    }


@lru_cache(maxsize=1024)
def _attributes(protocol: str, code: Code, model: str, version: int | None, signature: str, is_cached: bool) -> bytes:
    """Return the attributes that many requests have in common."""
    values: dict[str, Value | None] = {
        "tpuserve.protocol": protocol,
        "tpuserve.code": code.name,
        "error.type": code.name if code in _FAULTS else None,
        "tpuserve.model": model or None,
        "tpuserve.version": version,
        "tpuserve.signature": signature or None,
        "tpuserve.cached": is_cached or None,
    }
    return b"".join(attribute(name, value) for name, value in values.items() if value is not None)


_log = logging.getLogger(__name__)

_MOST_QUEUED: Final = 2048
# Requests of one OTLP request: about 0.7 MB, and receivers of gRPC accept 4 MiB.
_MOST_SENT: Final = 512
# Time between the first request and its export. Requests that shared a batch end within it.
_GATHER_S: Final = 1.0
# Limits after `stop`: of the wait for the export of the last spans, and of the wait for an interrupted thread. Hosts
# wait 5 s for all parts of the application (`hosts/serving_process.py`).
_STOP_S: Final = 3.0
_INTERRUPTED_S: Final = 1.0


class TraceExport:
    """Bounded queue, and the thread "trace-export". A full queue drops and counts new requests.

    The event loop's thread calls `add`. `_changed` guards the queue and `_stopping`; the thread owns the other fields.
    """

    def __init__(
        self, sender: RetryingSender, url: str, attributes: Mapping[str, Value], metrics: TraceMetrics
    ) -> None:
        """Create the queue without starting the thread. `url` is the receiver's, for messages."""
        self._sender = sender
        self._url = url
        self._resource = resource(attributes)
        self._scope = scope(SERVICE_NAME, version())
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queue: deque[RequestRecord] = deque()
        self._stopping = False
        self._batches = BatchSpans()
        self._is_failing = False
        # A receiver that does not respond must not keep the process alive, if even `close` cannot end the wait.
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Export the queued requests, for at most a few seconds, and join the thread. May be called without `start`."""
        # First, so that no export of the last spans begins with the usual timeout.
        self._sender.hurry()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is None:
            return
        self._thread.join(_STOP_S)
        self._sender.close()
        self._thread.join(_INTERRUPTED_S)

    def add(self, record: RequestRecord) -> None:
        """Queue a traced request, or drop it if the queue is full. Never waits for the receiver."""
        with self._changed:
            has_room = len(self._queue) < _MOST_QUEUED
            if has_room:
                self._queue.append(record)
                if len(self._queue) in (1, _MOST_QUEUED // 2):
                    self._changed.notify()
        if not has_room:
            self._metrics.requests_traced(outcome="queue_full", count=1)

    # The thread.

    def _run(self) -> None:
        while self._run_next():
            pass
        self._sender.close()

    def _run_next(self) -> bool:
        """Export the gathered requests. A separate frame, so that no request stays alive while the thread waits."""
        with self._changed:
            while not (self._queue or self._stopping or self._batches.are_pending):
                self._changed.wait()
            # The first request of an empty queue notifies, too, while batches are pending.
            self._changed.wait_for(lambda: self._stopping or len(self._queue) >= _MOST_QUEUED // 2, _GATHER_S)
            records, self._queue = self._queue, deque()
            stopping = self._stopping
        while records:
            part = [records.popleft() for _ in range(min(len(records), _MOST_SENT))]
            self._export(partial(self._request_spans, part), len(part))
        # At the end, no request can join a batch any more.
        for _ in range(2 if stopping else 1):
            self._export(self._batches.tick, 0)
        return not stopping

    def _request_spans(self, records: list[RequestRecord]) -> Iterator[bytes]:
        for record in records:
            if record.trace is not None:
                yield from request_spans(record, record.trace, self._batches)

    def _export(self, make_spans: Callable[[], Iterable[bytes]], requests: int) -> None:
        """Make and send the spans of some requests, or of batches."""
        try:
            spans = list(make_spans())
        except Exception:
            # The top of the worker loop: a bug in a span must not end the thread.
            _log.exception("Cannot make the spans of %s", counted(requests, "request"))
            self._count("export_failed", requests)
        else:
            self._send(spans, requests)

    def _send(self, spans: list[bytes], requests: int) -> None:
        """Send spans, and count their requests. A batch's span belongs to requests that are counted already."""
        if not spans:
            return
        rejection = Rejection()
        # One attempt is enough for a receiver that did not take the spans before.
        if not (self._is_failing and self._sender.is_hurried):
            rejection = self._try(request(self._resource, self._scope, spans))
        if self._is_failing:
            self._count("export_failed", requests)
            return
        if rejection.spans or rejection.reason:
            reason = rejection.reason or "it gave no reason"
            _log.warning(
                "The receiver of traces %s rejected %d of %d spans: %s", self._url, rejection.spans, len(spans), reason
            )
        # The receiver does not name the spans, so they count as those of as few requests as possible.
        rejected = min(-(-rejection.spans * requests // len(spans)), requests)
        self._count("rejected", rejected)
        self._count("exported", requests - rejected)

    def _count(self, outcome: str, requests: int) -> None:
        if requests:
            self._metrics.requests_traced(outcome=outcome, count=requests)

    def _try(self, body: bytes) -> Rejection:
        """Send a request, and note whether the receiver took it."""
        try:
            rejection = self._sender.send(body)
        except ExportError as error:
            self._note(str(error))
        except Exception as error:
            # As above, for a bug in a transport.
            _log.exception("Unexpected error of the export to %s", self._url)
            self._note(type(error).__name__)
        else:
            self._note("")
            return rejection
        return Rejection()

    def _note(self, problem: str) -> None:
        """Log the first of several failures, and the end of them."""
        if problem and not self._is_failing:
            _log.error("Cannot export traces to %s: %s. The server drops traces meanwhile", self._url, problem)
        elif self._is_failing and not problem:
            _log.info("The receiver of traces %s responds again", self._url)
        self._is_failing = bool(problem)
