"""OpenVinoOptions: the operator's choice of OpenVINO. Imports no OpenVINO, which most servers do not need."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpuserve_server.core.terms.setting import Setting


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
    tags: tuple[str, ...] = ("serve",)
    bfloat16_kernels: bool = True
    mixed_precision: bool = False
