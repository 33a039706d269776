"""TensorFlow executor on demand: a server that only runs device programs does not import TensorFlow."""

import threading

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.host_memory import HostMemory, total_size
from tpuserve_server.core.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.runtimes import TENSORFLOW
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions
from tpuserve_server.executors.tensorflow.start import start_tensorflow
from tpuserve_server.executors.tensorflow.tracer import TensorFlowTracer

# Files that TensorFlow reads into memory.
_FILES = ("saved_model.pb", "saved_model.pbtxt", "variables")
_SUBJECT = "the version's SavedModel needs"


class TensorFlowOnDemand:
    """Candidate for every version. The first version creates its TensorFlowExecutor.

    Thread-safe: `_lock` guards the executor.
    """

    name = "TensorFlow on the CPU"
    kind = "cpu"

    def __init__(self, options: TensorFlowOptions, memory: HostMemory) -> None:
        """Take the options without importing TensorFlow. Loads reserve the size of their files in `memory`."""
        self._options = options
        self._memory = memory
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
                self._executor = _start(self._options)
            return self._executor


def _start(options: TensorFlowOptions) -> Executor:
    if not TENSORFLOW.is_installed:
        raise TENSORFLOW.missing(_SUBJECT)
    try:
        start_tensorflow()
        from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
    except ImportError as error:
        raise FailedPrecondition(f"{_SUBJECT} TensorFlow, which cannot be imported: {error.msg}") from error
    return TensorFlowExecutor(options)
