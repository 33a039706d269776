"""ChosenTracer: uses the tracer of the executor that runs models when a session starts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.tracer import TraceOptions, Tracer


class ChosenTracer:
    """Tracer and SpanRecorder that uses another tracer: that of the runtime that runs models.

    A runtime records only its own runs, and TensorBoard shows only one host plane. Spans are those of the runtime that
    records, so the trace shows the batches of every model. One thread at a time starts and stops; any may use spans.
    """

    __slots__ = ("_active", "_choose", "is_recording")

    def __init__(self, choose: Callable[[], Tracer]) -> None:
        """Take `choose`, which returns the tracer for a new session. It raises Internal if there is none."""
        self._choose = choose
        self._active: Tracer | None = None
        self.is_recording = False

    def start(self, options: TraceOptions) -> None:
        """Implement Tracer.start."""
        if self._active is not None:
            raise Internal("Another profiling session active.")
        tracer = self._choose()
        tracer.start(options)
        self._active, self.is_recording = tracer, True

    def stop(self) -> bytes:
        """Implement Tracer.stop."""
        tracer, self._active, self.is_recording = self._active, None, False
        if tracer is None:
            raise Internal("No profiling session is active.")
        return tracer.stop()

    def span(self, name: str, **facts: str | int) -> AbstractContextManager[object]:
        """Implement SpanRecorder.span."""
        # The session may have ended since the caller read `is_recording`.
        tracer = self._active
        return nullcontext() if tracer is None else tracer.span(name, **facts)
