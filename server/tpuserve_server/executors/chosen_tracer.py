"""ChosenTracer: uses the tracer of the executor that runs models when a session starts."""

from collections.abc import Callable

from tpuserve_server.core.errors import Internal
from tpuserve_server.core.tracer import TraceOptions, Tracer


class ChosenTracer:
    """Tracer that uses another one. A runtime records only its own runs, and TensorBoard shows only one host plane."""

    def __init__(self, choose: Callable[[], Tracer]) -> None:
        """Take `choose`, which returns the tracer for a new session. It raises Internal if there is none."""
        self._choose = choose
        self._active: Tracer | None = None

    def start(self, options: TraceOptions) -> None:
        """Implement Tracer.start."""
        if self._active is not None:
            raise Internal("Another profiling session active.")
        tracer = self._choose()
        tracer.start(options)
        self._active = tracer

    def stop(self) -> bytes:
        """Implement Tracer.stop."""
        tracer, self._active = self._active, None
        if tracer is None:
            raise Internal("No profiling session is active.")
        return tracer.stop()
