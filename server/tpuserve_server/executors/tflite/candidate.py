"""`--prefer_tflite_model`: which of the two models in a version directory is loaded, and by which executor."""

from pathlib import Path

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.servable import Executor, Servable
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.tflite.options import TfliteOptions

_MODEL_FILE = "model.tflite"


class PreferringTflite:
    """Takes `model.tflite` where a version has one, and the SavedModel otherwise, as TensorFlow Serving does."""

    def __init__(self, saved_model: Executor, options: TfliteOptions) -> None:
        """`saved_model` loads versions without `model.tflite`."""
        self._saved_model = saved_model
        self._options = options

    def load(self, servable_id: ServableId, path: Path, *, allow_bfloat16: bool) -> Servable:
        """Load whichever is there; slow.

        Raises:
            ServingError: as the executor that was taken; FailedPrecondition where LiteRT is not installed.
        """
        chosen = self._tflite() if (path / _MODEL_FILE).is_file() else self._saved_model
        return chosen.load(servable_id, path, allow_bfloat16=allow_bfloat16)

    def _tflite(self) -> Executor:
        try:
            # Only here: the runtime is an extra, and of no use to a server that has no such model.
            from tpuserve_server.executors.tflite.executor import TfliteExecutor
        except ImportError as error:
            raise FailedPrecondition(
                f"{_MODEL_FILE} needs LiteRT, which is not installed: pip install 'tpuserve-server[tflite]'"
            ) from error
        return TfliteExecutor(self._options)
