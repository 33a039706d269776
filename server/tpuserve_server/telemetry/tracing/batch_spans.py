"""BatchSpans: a span for each batch that ran a traced request, in a trace of its own, with links to its requests."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tpuserve_server.core.batching.batch_run import BatchRun
from tpuserve_server.core.types import ServableId
from tpuserve_server.telemetry.tracing.message import SpanId, attribute, link, rare_attribute, span

_NANOSECONDS: Final = 1e9
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
# Numbers of the latest exported batches, to which no link can be added any more.
_MOST_EXPORTED: Final = 4096


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
