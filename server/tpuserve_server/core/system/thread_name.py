"""Names of threads in the kernel, which profilers, debuggers and `top -H` show. Python sets none before 3.14."""

import contextlib
import sys
import threading
from pathlib import Path

# The kernel keeps 15 bytes (prctl(2), PR_SET_NAME).
_MAX_BYTES = 15


def name_thread() -> None:
    """Give the calling thread its Python name, cut to 15 bytes, on Linux. A new thread has its parent's otherwise."""
    if sys.platform == "linux":
        # A character that is cut in two would make the names of a trace invalid.
        name = threading.current_thread().name.encode()[:_MAX_BYTES].decode(errors="ignore")
        # A sandbox may refuse. Then only the display suffers.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
