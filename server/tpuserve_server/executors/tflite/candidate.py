"""`--prefer_tflite_model`: prefers a version's `model.tflite` to its SavedModel, as in TensorFlow Serving."""

from tpuserve_server.core.system.memory import HostMemory, total_size
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.candidate import Refusal
from tpuserve_server.executors.tflite import LITERT, MODEL_FILE, TfliteOptions


class PreferredTflite:
    """Candidate for versions with `model.tflite`, if the operator prefers it."""

    name = "LiteRT on the CPU"
    kind = "cpu"

    def __init__(self, options: TfliteOptions, memory: HostMemory) -> None:
        """Take the options without importing LiteRT. Loads reserve the size of their file in `memory`."""
        self._options = options
        self._memory = memory

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """Implement Candidate.load.

        Raises:
            ServingError: as TfliteExecutor; MissingRuntime if LiteRT is not installed; ResourceExhausted if the file is
                larger than the free memory.
        """
        if not (self._options.preferred and (version.path / MODEL_FILE).is_file()):
            return Refusal(FailedPrecondition(f"the version has no {MODEL_FILE}, or --prefer_tflite_model is off"))
        try:
            # Imported here, because the runtime is an extra that a server without such models does not need.
            from tpuserve_server.executors.tflite.model import TfliteExecutor
        except ImportError as error:
            raise LITERT.missing(f"{MODEL_FILE} needs") from error
        with self._memory.reserve(total_size(version.path / MODEL_FILE)):
            return TfliteExecutor(self._options).load(servable_id, version)

    def tracer(self) -> Tracer | None:
        """Return None: LiteRT has no profiler."""
        return None
