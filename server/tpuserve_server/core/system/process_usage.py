"""CPU time and memory of this process."""

import os
import time
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def cpu_s() -> float:
    """Return the seconds of CPU time of all threads since the start of the process."""
    return time.process_time()


def resident_bytes() -> int | None:
    """Return the memory of the process that is in RAM, or None if the system does not report it."""
    try:
        # In pages (proc_pid_statm(5)).
        _, resident = _STATM.read_text().split()[:2]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
