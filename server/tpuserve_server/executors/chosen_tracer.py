"""ChosenTracer: records by the tracer of the executor that runs models when a session starts."""

from collections.abc import Callable

from tpuserve_server.core.errors import Internal
from tpuserve_server.core.tracer import TraceOptions, Tracer


class ChosenTracer:
    """core.tracer.Tracer. No runtime records what another one runs, and TensorBoard shows one host plane only."""

    def __init__(self, choose: Callable[[], Tracer]) -> None:
        """`choose` makes the tracer of a session when it starts. It raises Internal where there is none."""
        self._choose = choose
        self._active: Tracer | None = None

    def start(self, options: TraceOptions) -> None:
        """As the protocol."""
        if self._active is not None:
            raise Internal("Another profiling session active.")
        tracer = self._choose()
        tracer.start(options)
        self._active = tracer

    def stop(self) -> bytes:
        """As the protocol."""
        tracer, self._active = self._active, None
        if tracer is None:
            raise Internal("No profiling session is active.")
        return tracer.stop()
