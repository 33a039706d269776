"""Runs SavedModels with OpenVINO on the CPU, if a trial shows the outputs of TensorFlow in less time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.executors.plugin import ExecutorContext, ExecutorOptions, ExecutorPlugin, FlagFinding, Runtime
from tpuserve_server.executors.tensorflow import DEFAULT_TAGS, TensorFlowOptions, saved_models

if TYPE_CHECKING:
    from tpuserve_server.executors.candidate import Candidate

OPENVINO: Final = Runtime(
    "OpenVINO",
    "SavedModels that it runs faster than TensorFlow",
    "openvino",
    ("openvino",),
    "tpuserve-server[openvino]",
)


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """Whether loads try OpenVINO, and the threads and precision of its runs."""

    use: Annotated[
        Literal["off", "auto"],
        Setting(
            "Runtime",
            "auto: run a SavedModel with OpenVINO if a trial at its load gives TensorFlow's outputs in less time. off: "
            "run every SavedModel with TensorFlow.",
            name="openvino",
        ),
    ] = "off"
    # Threads of one run: tensorflow_session_parallelism or tensorflow_intra_op_parallelism. 0: OpenVINO's default, all
    # cores.
    num_threads: int = 0
    # TensorFlowOptions.tags, bfloat16_kernels and mixed_precision.
    tags: tuple[str, ...] = DEFAULT_TAGS
    bfloat16_kernels: bool = True
    mixed_precision: bool = False


def _make(context: ExecutorContext) -> "Candidate | None":
    options, of = context.options[OpenVinoOptions], context.options[TensorFlowOptions]
    if options.use == "off":
        return None
    from tpuserve_server.executors.openvino.candidate import TensorFlowOrOpenVino

    options = replace(
        options,
        num_threads=of.intra_op_threads,
        tags=of.tags,
        bfloat16_kernels=of.bfloat16_kernels,
        mixed_precision=of.mixed_precision == "bfloat16",
    )
    return TensorFlowOrOpenVino(saved_models(context), options, context.memory)


def _runs(_options: ExecutorOptions, _version_path: Path) -> bool:
    return False  # TensorFlow must load the version first.


def _check_flags(options: ExecutorOptions) -> Iterator[FlagFinding]:
    if options[OpenVinoOptions].use == "auto" and not OPENVINO.is_installed:
        yield FlagFinding("warning", "openvino", OPENVINO.missing("the trials need").message)


EXECUTOR: Final = ExecutorPlugin(OPENVINO, OpenVinoOptions, _make, runs=_runs, check_flags=_check_flags)
