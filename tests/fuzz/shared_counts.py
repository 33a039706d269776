"""Counts of a session in a file that both processes map, because Atheris ends its process without a last word."""

import mmap
import struct
from pathlib import Path
from typing import Final, NamedTuple, Self

_FORM: Final = struct.Struct("<QQ")


class Counts(NamedTuple):
    """Executions, and those whose input the parser accepted."""

    executions: int
    accepted: int


class SharedCounts:
    """The counts of the session that runs. One thread owns it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create the file."""
        path.write_bytes(bytes(_FORM.size))
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _FORM.size))

    def add(self, *, is_accepted: bool) -> int:
        """Count one execution, and return their number."""
        executions, accepted = _FORM.unpack_from(self._memory)
        _FORM.pack_into(self._memory, 0, executions + 1, accepted + is_accepted)
        return int(executions) + 1


def read_counts(path: Path) -> Counts:
    """Return the counts of a session that has ended, zeros if it has counted nothing."""
    return Counts(*_FORM.unpack(path.read_bytes())) if path.exists() else Counts(0, 0)
