"""TensorFlow executor on demand: a server that only runs device programs does not import TensorFlow."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpuserve_server.core.system.memory import HostMemory, total_size
from tpuserve_server.core.terms.errors import FailedPrecondition, Internal
from tpuserve_server.core.terms.servable import DeviceMetrics, Executor, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import SESSION_EVENT, TraceOptions, Tracer
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TENSORFLOW, TensorFlowOptions
from tpuserve_server.executors.tensorflow.start import start_tensorflow, tensorflow_modules

# TensorFlow's profiler session in this process. Only this module uses its private binding.
#
# The public API, `tf.profiler.experimental`, keeps one session for the whole process, and a failed start leaves it
# open.

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


# Files that TensorFlow reads into memory.
_FILES = ("saved_model.pb", "saved_model.pbtxt", "variables")
_SUBJECT = "the version's SavedModel needs"


class TensorFlowOnDemand:
    """Candidate for every version. The first version creates its TensorFlowExecutor.

    Thread-safe: `_lock` guards the executor.
    """

    name = "TensorFlow on the CPU"
    kind = "cpu"

    def __init__(self, options: TensorFlowOptions, memory: HostMemory, metrics: DeviceMetrics | None = None) -> None:
        """Take the options without importing TensorFlow. Loads reserve the size of their files in `memory`.

        `metrics` counts graphs that sessions build.
        """
        self._options = options
        self._memory = memory
        self._metrics = metrics
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Load the version as TensorFlowExecutor does. The first call imports TensorFlow, which takes seconds.

        Raises:
            ServingError: as TensorFlowExecutor; MissingRuntime if TensorFlow is not installed; FailedPrecondition if it
                cannot be imported; ResourceExhausted if the files are larger than the free memory.
        """
        with self._memory.reserve(total_size(*(version.path / name for name in _FILES))):
            return self._started().load(servable_id, version)

    def tracer(self) -> Tracer | None:
        """Return TensorFlow's tracer, or None if TensorFlow is not installed.

        The tracer's first session imports TensorFlow if no model has.
        """
        return TensorFlowTracer() if TENSORFLOW.is_installed else None

    def _started(self) -> Executor:
        with self._lock:
            if self._executor is None:
                self._executor = _start(self._options, self._metrics)
            return self._executor


def _start(options: TensorFlowOptions, metrics: DeviceMetrics | None) -> Executor:
    if not TENSORFLOW.is_installed:
        raise TENSORFLOW.missing(_SUBJECT)
    try:
        start_tensorflow()
        from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
    except ImportError as error:
        raise FailedPrecondition(f"{_SUBJECT} TensorFlow, which cannot be imported: {error.msg}") from error
    return TensorFlowExecutor(options, metrics)
