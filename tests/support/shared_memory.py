"""POSIX shared memory objects that a test creates and removes, as clients of Triton do."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = f"tpuserve-test-{os.getpid()}-"
_DIRECTORY = Path("/dev/shm")


class SharedObject:
    """An object of the name PREFIX + `name`, for the duration of the context."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.key = f"/{PREFIX}{name}"
        self.path = _DIRECTORY / f"{PREFIX}{name}"
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.path.write_bytes(bytes(self._size_bytes))
        self.path.chmod(0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)

    def write(self, data: bytes, offset: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def read(self) -> bytes:
        return self.path.read_bytes()
