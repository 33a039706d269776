"""TfliteOptions: options for TensorFlow Lite models. Imports no LiteRT, which most servers do not need."""

import os
from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class TfliteOptions:
    """Preference for `model.tflite` over a SavedModel, and the number of cores for its runs. 0 means all cores."""

    preferred: Annotated[
        bool, Setting("Models", "Load model.tflite if a version has it.", name="prefer_tflite_model")
    ] = False
    # Interpreters that a model may have, each for one run at a time.
    max_interpreters: Annotated[
        int,
        Setting(
            "Runtime",
            "Maximum number of runs of a TensorFlow Lite model at the same time; 0: the number of cores.",
            name="num_tflite_pools",
            at_least=0,
        ),
    ] = 0
    # Threads of one operation: tensorflow_session_parallelism or tensorflow_intra_op_parallelism.
    num_threads: int = 0
    # SafetyOptions.allowed_ops.
    allowed_ops: tuple[str, ...] = ()

    @property
    def most_interpreters(self) -> int:
        """Interpreters that a model may have; at least 1."""
        return self.max_interpreters or _cores()

    @property
    def threads(self) -> int:
        """Threads of one operation; at least 1."""
        return self.num_threads or _cores()


def _cores() -> int:
    return os.cpu_count() or 1
