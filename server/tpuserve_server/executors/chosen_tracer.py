"""Which of the two profilers records: JAX's once any version runs device programs, else TensorFlow's."""

from collections.abc import Callable

from tpuserve_server.core.errors import Internal
from tpuserve_server.core.tracer import TraceOptions, Tracer


class ChosenTracer:
    """core.tracer.Tracer. Neither sees what the other's runtime does, and TensorBoard shows one host plane only."""

    def __init__(
        self, runs_programs: Callable[[], bool], jax: Callable[[], Tracer], tensorflow: Callable[[], Tracer]
    ) -> None:
        """The tracers are made when they are first needed, as their runtimes are imported only then."""
        self._runs_programs = runs_programs
        self._jax = jax
        self._tensorflow = tensorflow
        self._active: Tracer | None = None

    def start(self, options: TraceOptions) -> None:
        """As the protocol."""
        if self._active is not None:
            raise Internal("Another profiling session active.")
        tracer = self._jax() if self._runs_programs() else self._tensorflow()
        tracer.start(options)
        self._active = tracer

    def stop(self) -> bytes:
        """As the protocol."""
        tracer, self._active = self._active, None
        if tracer is None:
            raise Internal("No profiling session is active.")
        return tracer.stop()
