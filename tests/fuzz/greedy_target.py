"""A target that takes too much memory for its last input. Usage: `python -m tests.fuzz.greedy_target COUNTS`."""

import sys
from pathlib import Path

from tests.fuzz.memory_limit import LIMIT_BYTES, MemoryLimit
from tests.fuzz.shared_counts import SharedCounts


def _run(data: bytes) -> bool:
    return bool(bytearray(2 * LIMIT_BYTES * data.count(b"x")))


if __name__ == "__main__":
    limited = MemoryLimit(_run, SharedCounts.create(Path(sys.argv[1])))
    for _ in range(300):
        limited(b"a")
    limited(b"x")
