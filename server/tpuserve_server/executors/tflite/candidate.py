"""`--prefer_tflite_model`: a version's `model.tflite` goes before its SavedModel, as in TensorFlow Serving."""

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.candidate import Refusal
from tpuserve_server.executors.tflite.options import TfliteOptions

_MODEL_FILE = "model.tflite"


class PreferredTflite:
    """executors.candidate.Candidate: versions with `model.tflite`, where the operator prefers it."""

    name = "LiteRT on the CPU"
    kind = "cpu"

    def __init__(self, options: TfliteOptions) -> None:
        """Nothing is imported yet."""
        self._options = options

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """As the protocol.

        Raises:
            ServingError: as TfliteExecutor; FailedPrecondition where LiteRT is not installed.
        """
        if not (self._options.preferred and (version.path / _MODEL_FILE).is_file()):
            return Refusal(FailedPrecondition(f"the version has no {_MODEL_FILE}, or it is not preferred"))
        try:
            # Only here: the runtime is an extra, and of no use to a server that has no such model.
            from tpuserve_server.executors.tflite.executor import TfliteExecutor
        except ImportError as error:
            raise FailedPrecondition(
                f"{_MODEL_FILE} needs LiteRT, which is not installed: pip install 'tpuserve-server[tflite]'"
            ) from error
        return TfliteExecutor(self._options).load(servable_id, version)

    def tracer(self) -> Tracer | None:
        """Return None: LiteRT has no profiler."""
        return None
