"""CPU time, memory and file descriptors of this process."""

import os
import resource
import time
from pathlib import Path
from typing import Final, NamedTuple

_STATM: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = "/proc/self/fd"


class ProcessUsage(NamedTuple):
    """CPU time, memory and descriptors of a process. Figures that the system does not report are 0."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    open_descriptors: int
    most_descriptors: int


def process_usage() -> ProcessUsage:
    """Measure this process. Takes 20 us, or 0.2 us more for each descriptor on a Linux before 6.2."""
    virtual, resident = _memory_bytes() or (0, 0)
    return ProcessUsage(cpu_s(), resident, virtual, _open_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def cpu_s() -> float:
    """Return the seconds of CPU time of all threads since the start of the process."""
    return time.process_time()


def resident_bytes() -> int | None:
    """Return the memory of the process that is in RAM, or None if the system does not report it."""
    memory = _memory_bytes()
    return None if memory is None else memory[1]


def _memory_bytes() -> tuple[int, int] | None:
    """Return the virtual and the resident memory."""
    try:
        # In pages (proc_pid_statm(5)).
        virtual, resident = _STATM.read_text().split()[:2]
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return int(virtual) * page_bytes, int(resident) * page_bytes
    except (OSError, ValueError):
        return None


def _open_descriptors() -> int:
    try:
        # Linux 6.2 and later report the number as the size of the directory.
        return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))
    except OSError:
        return 0
