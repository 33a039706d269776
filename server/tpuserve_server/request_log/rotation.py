"""RotatingFiles: a series of files of PredictionLogs, of bounded size and number. For one thread."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from tpuserve_server.request_log.options import LogFormat, Rotation
from tpuserve_server.request_log.record_file import RecordFile, open_record_file


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
