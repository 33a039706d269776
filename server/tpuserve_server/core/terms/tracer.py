"""Tracer and SpanRecorder: the interfaces to the recorder of a trace of this process, one session at a time."""

from contextlib import AbstractContextManager
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

    def span(self, name: str, **facts: str | int) -> AbstractContextManager[object]:
        """Return a context that the trace shows as an event of the calling thread, with `facts` as arguments.

        Unlike the other methods, any thread may call it, also before and after a session.
        """
        ...


class SpanRecorder(Protocol):
    """Adds events to the trace of the session that runs, if one runs. Any thread may use it."""

    @property
    def is_recording(self) -> bool:
        """Whether a session runs. Device threads read it for each batch, so it costs next to nothing."""
        ...

    def span(self, name: str, **facts: str | int) -> AbstractContextManager[object]:
        """Return a context as `Tracer.span` does, or one that does nothing without a session."""
        ...
