"""The seam to what records a trace of this process: one session at a time."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How much is recorded: 0 nothing, 1 steps, 2 operations too, 3 everything (profiler_options.proto)."""

    host_level: int = 2
    device_level: int = 1


# The first event of every trace. Clients take a trace without events for a failure, and retry.
SESSION_EVENT = "tpuserve: profiling session"


class Tracer(Protocol):
    """Blocks for as long as its work takes, so call it from a worker thread. Any thread will do, one at a time."""

    def start(self, options: TraceOptions) -> None:
        """Begin to record.

        Raises:
            Internal: something in this process records already, or nothing can be recorded.
        """
        ...

    def stop(self) -> bytes:
        """End the session; a serialized tensorflow.profiler.XSpace.

        Raises:
            Internal: what was recorded cannot be had.
        """
        ...
