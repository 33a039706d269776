"""The TensorFlow executor of a server that may never need it: who runs device programs alone imports no TensorFlow."""

import threading

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions
from tpuserve_server.executors.tensorflow.start import start_tensorflow
from tpuserve_server.executors.tensorflow.tracer import TensorFlowTracer


class TensorFlowOnDemand:
    """executors.candidate.Candidate, for every version: a TensorFlowExecutor from the first one on.

    Safe to use from several loading threads; `_lock` guards the executor.
    """

    name = "TensorFlow on the CPU"
    kind = "cpu"

    def __init__(self, options: TensorFlowOptions) -> None:
        """Nothing is imported yet."""
        self._options = options
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """As TensorFlowExecutor; the first time TensorFlow is imported before, which takes seconds.

        Raises:
            ServingError: as TensorFlowExecutor; FailedPrecondition where TensorFlow cannot be imported.
        """
        return self._started().load(servable_id, version)

    def tracer(self) -> Tracer:
        """Return TensorFlow's, whose first session imports TensorFlow where no model has."""
        return TensorFlowTracer()

    def _started(self) -> Executor:
        with self._lock:
            if self._executor is None:
                self._executor = _start(self._options)
            return self._executor


def _start(options: TensorFlowOptions) -> Executor:
    try:
        start_tensorflow()
        from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
    except ImportError as error:
        raise FailedPrecondition(f"a SavedModel needs TensorFlow, which cannot be imported: {error.msg}") from error
    return TensorFlowExecutor(options)
