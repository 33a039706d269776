"""The memory that one input may take, measured by the peak of the process."""

import resource
from collections.abc import Callable
from typing import Final

from tests.fuzz.shared_counts import SharedCounts
from tests.fuzz.target import expect

# Imports, caches and numpy's buffers grow during the first inputs.
_WARM_UP: Final = 256
_KIB: Final = 1 << 10
LIMIT_BYTES: Final = 48 << 20


class MemoryLimit:
    """Runs inputs, and raises a Finding for one that raises the process's peak memory by more than LIMIT_BYTES."""

    def __init__(self, run: Callable[[bytes], bool], counts: SharedCounts) -> None:
        """Measure `run`, and count into `counts`."""
        self._run = run
        self._counts = counts

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        is_accepted = self._run(data)
        executions = self._counts.add(is_accepted=is_accepted)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * _KIB
        expect(grown <= LIMIT_BYTES or executions < _WARM_UP, f"{len(data)} bytes take {grown >> 20} MiB of memory")
