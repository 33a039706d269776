"""JAX's profiler session, which records PJRT's clients and devices. TensorFlow's profiler does not record them."""

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.tracer import SESSION_EVENT, TraceOptions

# Message of upstream's service while another session runs (tsl/profiler/lib/profiler_lock.h).
_BUSY = "Another profiling session active."


class JaxTracer:
    """Tracer of JAX. It never records Python's calls, because that would make every request many times slower."""

    def __init__(self) -> None:
        """Start without a session."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, options: TraceOptions) -> None:
        """Implement Tracer.start. JAX chooses the level for devices."""
        if self._folder is not None:
            raise Internal(_BUSY)
        if jax.default_backend() != "tpu" and _has_libtpu(Path("/proc/self/maps")):
            raise Internal("The profiler cannot start: libtpu is loaded, and there is no TPU. Uninstall libtpu")
        profile_options = jax.profiler.ProfileOptions()
        profile_options.host_tracer_level = options.host_level
        profile_options.python_tracer_level = 0
        folder = tempfile.TemporaryDirectory(prefix="tpuserve-trace-")
        try:
            jax.profiler.start_trace(folder.name, profiler_options=profile_options)
        except RuntimeError as error:
            folder.cleanup()
            if "already been started" in str(error):
                raise Internal(_BUSY) from error
            raise Internal(f"The profiler cannot start: {error}") from error
        with jax.profiler.TraceAnnotation(SESSION_EVENT):
            self._folder = folder

    def stop(self) -> bytes:
        """Implement Tracer.stop."""
        folder, self._folder = self._folder, None
        if folder is None:
            raise Internal("No profiling session is active.")
        with folder:
            try:
                jax.profiler.stop_trace()
                (trace,) = Path(folder.name).rglob("*.xplane.pb")
                return trace.read_bytes()
            except (RuntimeError, OSError, ValueError) as error:
                raise Internal(f"Cannot collect the profile: {type(error).__name__}") from error

    def span(self, name: str, **facts: str | int) -> AbstractContextManager[object]:
        """Implement Tracer.span."""
        annotation: AbstractContextManager[object] = jax.profiler.TraceAnnotation(name, **facts)
        return annotation


def _has_libtpu(maps: Path) -> bool:
    """Return whether this process has loaded libtpu. Without a TPU, its profiler ends the process (libtpu 0.0.52)."""
    try:
        return "libtpu.so" in maps.read_text(errors="replace")
    except OSError:
        return False
