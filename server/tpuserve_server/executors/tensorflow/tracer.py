"""TensorFlow's profiler session in this process. Only this module uses its private binding.

The public API, `tf.profiler.experimental`, keeps one session for the whole process, and a failed start leaves it open.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpuserve_server.core.errors import Internal
from tpuserve_server.core.tracer import SESSION_EVENT, TraceOptions
from tpuserve_server.executors.tensorflow.start import start_tensorflow, tensorflow_modules

# Message of upstream's service while another session runs (tsl/profiler/lib/profiler_lock.h).
_BUSY = "Another profiling session active."


class TensorFlowTracer:
    """Tracer of TensorFlow. It never records Python's calls, because that would make every request many times slower.

    The first session imports TensorFlow, if no model has. A session can write its XSpace only to a directory. The
    tracer gives it a temporary one and reads the XSpace back.
    """

    def __init__(self) -> None:
        """Start without a session."""
        self._session: Any = None  # its ProfilerSession, which has no types
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, options: TraceOptions) -> None:
        """Implement Tracer.start."""
        if self._session is not None:
            raise Internal(_BUSY)
        start_tensorflow()
        with tensorflow_modules():
            from tensorflow.python.framework import errors_impl
            from tensorflow.python.profiler.internal import _pywrap_profiler, _pywrap_traceme

        folder = tempfile.TemporaryDirectory(prefix="tpuserve-trace-")
        session = _pywrap_profiler.ProfilerSession()
        levels = {"host_tracer_level": options.host_level, "device_tracer_level": options.device_level}
        try:
            session.start(folder.name, {**levels, "python_tracer_level": 0})
        except errors_impl.AlreadyExistsError as error:
            folder.cleanup()
            raise Internal(_BUSY) from error
        except (errors_impl.OpError, RuntimeError) as error:
            folder.cleanup()
            raise Internal(f"The profiler cannot start: {error}") from error
        _pywrap_traceme.TraceMe(SESSION_EVENT).Stop()
        self._session, self._folder = session, folder

    def stop(self) -> bytes:
        """Implement Tracer.stop."""
        session, folder = self._session, self._folder
        self._session = self._folder = None
        if session is None or folder is None:
            raise Internal("No profiling session is active.")
        from tensorflow.python.framework import errors_impl

        with folder:
            try:
                session.export_to_tb()
                (trace,) = Path(folder.name).rglob("*.xplane.pb")
                return trace.read_bytes()
            except (errors_impl.OpError, RuntimeError, OSError, ValueError) as error:
                raise Internal(f"Cannot collect the profile: {type(error).__name__}") from error

    @contextlib.contextmanager
    def span(self, name: str, **facts: str | int) -> Iterator[None]:
        """Implement Tracer.span. `tf.profiler.experimental.Trace` records only in sessions of that API."""
        from tensorflow.python.profiler.internal import _pywrap_traceme

        mark = _pywrap_traceme.TraceMe(name, **facts)
        try:
            yield
        finally:
            mark.Stop()
