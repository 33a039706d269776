"""Unmaps the pages of libraries that only their start has used. Linux only; elsewhere nothing happens.

A large library touches hundreds of megabytes of itself when it registers its operations, and most of them never again.
They count as the process's resident memory, although they are copies of a file. The process can map them again at any
time: from the page cache, 64 KiB take about a microsecond.
"""

import contextlib
import ctypes
import mmap
import re
from pathlib import Path
from typing import Final, NamedTuple

# A private mapping of a file in smaps: its first line, and two of its further lines (man 5 proc_pid_smaps). Anonymous
# pages are those that the process has modified, such as relocated addresses.
_MAPPING: Final = re.compile(
    rb"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<access>...)p \S+ \S+ \d+ +(?P<file>/.+)\n"
    rb"(?:[A-Z]\w+: .*\n)*?Anonymous: +(?P<anonymous>\d+) kB\n(?:[A-Z]\w+: .*\n)*?Swap: +(?P<swapped>\d+) kB\n",
    re.MULTILINE,
)


class _Mapping(NamedTuple):
    """The groups of `_MAPPING`."""

    start: bytes
    end: bytes
    access: bytes
    file: bytes
    anonymous: bytes
    swapped: bytes

    @property
    def is_code(self) -> bool:
        return b"x" in self.access

    @property
    def is_clean(self) -> bool:
        """Whether the file has all content: the process cannot write to the mapping, and has not.

        A mapping may have become read-only after the process wrote to it.
        """
        return b"w" not in self.access and not int(self.anonymous) and not int(self.swapped)


def release_library_pages() -> None:
    """Unmap the unmodified pages of all libraries. Takes about 25 ms, most of them without the interpreter's lock.

    Call it when a runtime has started, and before its first request. Other threads may run meanwhile, but must unload
    no library, because another mapping could take its place.
    """
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    dont_need = getattr(mmap, "MADV_DONTNEED", None)
    if advise is None or dont_need is None:
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    mappings = _mappings()
    libraries = {mapping.file for mapping in mappings if mapping.is_code}
    for mapping in mappings:
        # MADV_DONTNEED would lose modified pages, which have no other copy.
        if mapping.is_clean and mapping.file in libraries:
            start, end = int(mapping.start, 16), int(mapping.end, 16)
            advise(start, end - start, dont_need)  # Fails for locked pages, which then stay.


def _mappings() -> list[_Mapping]:
    with contextlib.suppress(OSError):
        return [_Mapping(*found) for found in _MAPPING.findall(Path("/proc/self/smaps").read_bytes())]
    return []
