"""Runs TensorFlow Lite models on the CPU with LiteRT: declaration and options."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.executors.plugin import (
    ExecutorContext,
    ExecutorOptions,
    ExecutorPlugin,
    FlagFinding,
    Runtime,
    SafetyOptions,
)
from tpuserve_server.executors.tensorflow import TensorFlowOptions

if TYPE_CHECKING:
    from tpuserve_server.executors.candidate import Candidate

MODEL_FILE: Final = "model.tflite"
LITERT: Final = Runtime(
    "LiteRT", "TensorFlow Lite models", "ai_edge_litert", ("ai-edge-litert",), "tpuserve-server[tflite]"
)


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


def _make(context: ExecutorContext) -> "Candidate":
    from tpuserve_server.executors.tflite.candidate import PreferredTflite

    options = context.options
    threads, allowed = options[TensorFlowOptions].intra_op_threads, options[SafetyOptions].allowed_ops
    return PreferredTflite(replace(options[TfliteOptions], num_threads=threads, allowed_ops=allowed), context.memory)


def _runs(options: ExecutorOptions, version_path: Path) -> bool:
    return options[TfliteOptions].preferred and (version_path / MODEL_FILE).is_file()


def _check_flags(options: ExecutorOptions) -> Iterator[FlagFinding]:
    if options[TfliteOptions].preferred:
        if LITERT.is_installed:
            yield FlagFinding("ok", "prefer_tflite_model", "LiteRT is installed")
        else:
            message = f"TensorFlow Lite models need LiteRT: {LITERT.installation}."
            yield FlagFinding("error", "prefer_tflite_model", message)


EXECUTOR: Final = ExecutorPlugin(LITERT, TfliteOptions, _make, (MODEL_FILE,), runs=_runs, check_flags=_check_flags)
