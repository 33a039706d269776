"""LogWriter: takes entries from requests, and writes them on a separate thread."""

import contextlib
import enum
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from google.protobuf import json_format

from tpuserve_formats.messages.official import LogMetadata, PredictionLog, TensorProto
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_formats.tf_record import framed
from tpuserve_formats.varint import varint
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.types import Body, ServableId
from tpuserve_server.observe.options import LogFormat, Rotation
from tpuserve_server.wire.predict_proto import decode_tensor

# A serialized message, or a function that serializes it on the log's thread.
Payload: TypeAlias = Body | Callable[[], bytes]

_TAG_REQUEST, _TAG_RESPONSE, _TAG_METADATA = b"\x0a", b"\x12", b"\x0a"


class LogKind(enum.IntEnum):
    """PredictionLog's kinds by field number (tensorflow_serving/apis/prediction_log.proto)."""

    CLASSIFY = 2
    REGRESS = 3
    MULTI_INFERENCE = 4
    PREDICT = 6


@dataclass(frozen=True, slots=True)
class LogTarget:
    """Destination of a model's entries: files `PREFIX-…`, for the share `sampling_rate` of its requests."""

    prefix: str
    format: LogFormat
    sampling_rate: float

    @property
    def files(self) -> tuple[str, LogFormat]:
        """Key of the files. Targets that differ only in the sampling rate write to the same files."""
        return self.prefix, self.format


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Answered request. `signature` is empty for several signatures; `time_s` is Unix time."""

    target: LogTarget
    kind: LogKind
    servable: ServableId
    signature: str
    request: Payload
    response: Payload
    time_s: float
    # Approximate memory of the entry in the queue.
    size_bytes: int

    def serialize(self) -> bytes:
        """Return the serialized PredictionLog. May be slow."""
        messages = _field(_TAG_REQUEST, _bytes(self.request)) + _field(_TAG_RESPONSE, _bytes(self.response))
        # Length-delimited fields: their number and wire type 2.
        return _field(_TAG_METADATA, self._metadata()) + _field(varint(self.kind << 3 | 2), messages)

    def _metadata(self) -> bytes:
        metadata = LogMetadata(timestamp_secs=int(self.time_s), saved_model_tags=["serve"])
        metadata.model_spec.name = self.servable.name
        metadata.model_spec.version.value = self.servable.version
        metadata.model_spec.signature_name = self.signature
        metadata.sampling_config.sampling_rate = self.target.sampling_rate
        return bytes(metadata.SerializeToString())


def _bytes(payload: Payload) -> Body:
    return payload() if callable(payload) else payload


def _field(tag: bytes, message: Body) -> bytes:
    return b"".join((tag, varint(len(message)), message))


# Larger tensors are written as base64 of their memory. Formatting their numbers would hold the interpreter, and delay
# requests, for long.
_MAX_JSON_VALUES = 1024


class RecordFile(Protocol):
    """Open file. Any method may raise OSError."""

    def write(self, record: bytes) -> int:
        """Write a serialized PredictionLog, and return its size in the file in bytes."""
        ...

    def flush(self) -> None:
        """Flush the written records to the operating system."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def open_record_file(path: Path, format_: LogFormat) -> RecordFile:
    """Open a new, empty file. Raises OSError."""
    return _JsonLines(path) if format_ == "jsonl" else _TfRecord(path)


class _JsonLines:
    """File with one PredictionLog per line, in protobuf's JSON with the fields' own names."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, record: bytes) -> int:
        return self._file.write(_line(PredictionLog.FromString(record)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _TfRecord:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, record: bytes) -> int:
        return self._file.write(framed(record))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(log: PredictionLog) -> bytes:
    for tensors in (log.predict_log.request.inputs, log.predict_log.response.outputs):
        for name in tensors:
            _pack(name, tensors[name])
    text = json_format.MessageToJson(log, preserving_proto_field_name=True, indent=None, ensure_ascii=False)
    return text.encode() + b"\n"


def _pack(name: str, tensor: TensorProto) -> None:
    """Move the values of a large numeric tensor from its typed field to tensor_content."""
    if tensor.tensor_content or tensor.string_val or tensor.ByteSize() <= _MAX_JSON_VALUES:
        return
    array = decode_tensor(name, tensor)
    if array.size > _MAX_JSON_VALUES:
        tensor.ParseFromString(encode_tensor(array, as_content=True))


class RotatingFiles:
    """Files `PREFIX-TIME-PROCESS-NUMBER.FORMAT`, the newest `max_files` of them."""

    def __init__(
        self, prefix: str, log_format: LogFormat, rotation: Rotation, now_s: Callable[[], float] = time.time
    ) -> None:
        """Create the series. The first record opens a file."""
        self._prefix = Path(prefix)
        self._format = log_format
        self._rotation = rotation
        self._now_s = now_s
        self._opened = 0
        self._file: RecordFile | None = None
        self._size_bytes = 0

    def write(self, record: bytes) -> None:
        """Write a serialized PredictionLog, and close the file if it is full. Raises OSError."""
        if self._file is None:
            self._file = self._open()
            self._size_bytes = 0
        self._size_bytes += self._file.write(record)
        if self._size_bytes >= self._rotation.max_bytes:
            self.close()

    def flush(self) -> None:
        """Flush the written records to the operating system. Raises OSError."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; the next record opens another. Raises OSError if written records cannot be kept."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> RecordFile:
        self._prefix.parent.mkdir(parents=True, exist_ok=True)
        self._remove_oldest()
        taken = set(os.listdir(self._prefix.parent))
        # A name is taken if a log, or a container with its server as process 1, restarts within a second.
        while (name := self._next_name()) in taken:
            pass
        return open_record_file(self._prefix.with_name(name), self._format)

    def _next_name(self) -> str:
        self._opened += 1
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._now_s()))
        return f"{self._prefix.name}-{when}-{os.getpid()}-{self._opened:06}.{self._format}"

    def _remove_oldest(self) -> None:
        """Remove the oldest files to make room for one. Files of earlier processes count too: names sort by time."""
        own_files = re.compile(rf"{re.escape(self._prefix.name)}-\d{{8}}T\d{{6}}-\d+-\d+\.{self._format}")
        names = sorted(name for name in os.listdir(self._prefix.parent) if own_files.fullmatch(name))
        for name in names[: max(0, len(names) - self._rotation.max_files + 1)]:
            self._prefix.with_name(name).unlink(missing_ok=True)


_log = logging.getLogger(__name__)

# LogTarget.files
Files: TypeAlias = tuple[str, LogFormat]

# Limits of the queue. One entry may be as large as the largest request.
_MAX_ENTRIES = 1000
_MAX_BYTES = 256 << 20
# Delay between the first entry and its write. One wake-up and one flush serve all entries of that time.
_GATHER_S = 0.05
# Time after a failure in which the entries of a target are dropped.
_RETRY_AFTER_S = 10.0


class LogMetrics(Protocol):
    """Counter of entries by outcome. Cheap and thread-safe."""

    def request_logged(self, *, model: str, outcome: str) -> None:
        """Count an entry: `written`, or dropped as `queue_full` or `write_failed`."""
        ...


@dataclass(slots=True, eq=False)
class _Output:
    """Files of one prefix, and the models of entries written since the last flush. Belongs to the thread."""

    files: RotatingFiles
    unsure: list[str] = field(default_factory=list)
    failed: bool = False
    retry_at_s: float = 0.0


class LogWriter:
    """Bounded queue, and the thread "request-log" that writes its entries. A full queue drops and counts new entries.

    Any thread may call `add` and `keep`, which never wait for a disk. `_changed` guards the queue, its size and
    `_current`; `_outputs` belongs to the thread.
    """

    def __init__(self, rotation: Rotation, clock: Clock, metrics: LogMetrics) -> None:
        """Create the writer without starting its thread."""
        self._rotation = rotation
        self._clock = clock
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queue: deque[LogEntry] = deque()
        self._queued_bytes = 0
        self._current: Collection[Files] = ()
        self._stopping = False
        self._outputs: dict[Files, _Output] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="request-log")
        self._thread.start()

    def stop(self) -> None:
        """Write the queued entries, close the files and join the thread. `add` must not be called afterwards."""
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._thread = None

    def add(self, entry: LogEntry) -> None:
        """Queue an entry, or drop it if the queue is full."""
        with self._changed:
            has_room = len(self._queue) < _MAX_ENTRIES and self._queued_bytes + entry.size_bytes <= _MAX_BYTES
            if has_room:
                self._queue.append(entry)
                self._queued_bytes += entry.size_bytes
                if len(self._queue) == 1 or len(self._queue) == _MAX_ENTRIES // 2:
                    self._changed.notify()
        if not has_room:
            self._metrics.request_logged(model=entry.servable.name, outcome="queue_full")

    def keep(self, targets: Collection[LogTarget]) -> None:
        """Close the files of all other targets, after writing their queued entries."""
        with self._changed:
            self._current = {target.files for target in targets}
            self._changed.notify()

    # The thread.

    def _run(self) -> None:
        while self._run_next():
            pass
        self._close_all(list(self._outputs))

    def _run_next(self) -> bool:
        """Write the gathered entries. A separate frame, so that no entry stays alive while the thread waits."""
        with self._changed:
            while not (self._queue or self._stopping or self._outputs.keys() - self._current):
                self._changed.wait()
            if not self._stopping:
                self._changed.wait(_GATHER_S)
            entries, self._queue = self._queue, deque()
            current, stopping = self._current, self._stopping
        while entries:
            entry = entries.popleft()
            self._write(entry)
            # Free the room of one entry at a time: the other entries taken with it still hold their memory.
            with self._changed:
                self._queued_bytes -= entry.size_bytes
        self._flush_all()
        self._close_all([files for files in self._outputs if files not in current])
        return not stopping

    def _write(self, entry: LogEntry) -> None:
        files = entry.target.files
        output = self._outputs.get(files)
        if output is None:
            output = self._outputs[files] = _Output(RotatingFiles(*files, self._rotation))
        output.unsure.append(entry.servable.name)
        if self._clock.monotonic_s() < output.retry_at_s:
            self._settle(output, "write_failed")
            return
        try:
            output.files.write(entry.serialize())
        except OSError as error:
            self._fail(files, output, error)
        except Exception:
            # The top of the worker loop: an entry that cannot be written must not end the log.
            _log.exception("Cannot log a request for %s", entry.servable)
            self._metrics.request_logged(model=output.unsure.pop(), outcome="write_failed")

    def _fail(self, files: Files, output: _Output, error: OSError) -> None:
        """Retry later with a new file. Log the error once, until a write succeeds."""
        output.retry_at_s = self._clock.monotonic_s() + _RETRY_AFTER_S
        if not output.failed:
            reason = error.strerror or error
            _log.error("Cannot write the request log %s-*: %s. The server retries", files[0], reason)
        output.failed = True
        self._settle(output, "write_failed")
        with contextlib.suppress(OSError):
            output.files.close()

    def _flush_all(self) -> None:
        for files, output in self._outputs.items():
            try:
                output.files.flush()
            except OSError as error:
                self._fail(files, output, error)
            else:
                output.failed = output.failed and not output.unsure
                self._settle(output, "written")

    def _settle(self, output: _Output, outcome: str) -> None:
        """Count the entries since the last flush by outcome."""
        for model in output.unsure:
            self._metrics.request_logged(model=model, outcome=outcome)
        output.unsure.clear()

    def _close_all(self, ended: list[Files]) -> None:
        for files in ended:
            output = self._outputs.pop(files)
            try:
                output.files.close()
            except OSError as error:
                self._fail(files, output, error)
