"""Tracer: the interface to the recorder of a trace of this process, one session at a time."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The level of detail: 0 nothing, 1 steps, 2 also operations, 3 everything (profiler_options.proto)."""

    host_level: int = 2
    device_level: int = 1


# The first event of every trace. Clients treat a trace without events as a failure, and retry.
SESSION_EVENT = "tpuserve: profiling session"


class Tracer(Protocol):
    """Records traces. Methods block until done, so call them from a worker thread, one at a time."""

    def start(self, options: TraceOptions) -> None:
        """Begin to record.

        Raises:
            Internal: another recording runs in this process, or recording is impossible.
        """
        ...

    def stop(self) -> bytes:
        """End the session and return a serialized tensorflow.profiler.XSpace.

        Raises:
            Internal: the recorded data cannot be read.
        """
        ...
