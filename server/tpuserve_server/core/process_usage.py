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
        # The second number is the resident set in pages (proc_pid_statm(5)).
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
