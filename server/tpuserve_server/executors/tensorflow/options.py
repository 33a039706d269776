"""TensorFlowOptions: options for SavedModels. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import Setting

if TYPE_CHECKING:
    from tpuserve_formats.messages.official import ConfigProto

DEFAULT_TAGS = ("serve",)


@dataclass(frozen=True, slots=True)
class TensorFlowOptions:
    """Operator's options for TensorFlow.

    Raises:
        InvalidArgument: threads are set in two ways.
    """

    tags: Annotated[
        tuple[str, ...],
        Setting("Models", "Tags of the graph to load from a SavedModel, separated by commas.", name="saved_model_tags"),
    ] = DEFAULT_TAGS
    session_parallelism: Annotated[
        int,
        Setting(
            "Runtime",
            "Threads of a session; sets the next two flags. 0: use their values.",
            name="tensorflow_session_parallelism",
            at_least=0,
        ),
    ] = 0
    intra_op_parallelism: Annotated[
        int,
        Setting(
            "Runtime",
            "Threads of one operation; 0: the number of cores.",
            name="tensorflow_intra_op_parallelism",
            at_least=0,
        ),
    ] = 0
    inter_op_parallelism: Annotated[
        int,
        Setting(
            "Runtime",
            "Operations that run at the same time; 0: one after another, in the batch's thread.",
            name="tensorflow_inter_op_parallelism",
            at_least=0,
        ),
    ] = 0
    session_config_file: Annotated[
        Path | None,
        Setting(
            "Runtime",
            "File with TensorFlow's ConfigProto; the flags above override it.",
            name="tensorflow_session_config_file",
        ),
    ] = None
    mixed_precision: Annotated[
        Literal["", "bfloat16"],
        Setting(
            "Runtime",
            "bfloat16: TensorFlow's automatic mixed precision for every model, even without the exporter's check.",
        ),
    ] = ""
    bfloat16_kernels: Annotated[
        bool, Setting("Runtime", "Use bfloat16 kernels if the exporter allows them and the CPU has them.")
    ] = True
    # Content of `session_config_file`. The other options override it.
    session_config: "ConfigProto | None" = None
    # SafetyOptions.allowed_ops.
    allowed_ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.session_parallelism and self.intra_op_parallelism and self.inter_op_parallelism:
            # TensorFlow Serving's rule and message.
            raise InvalidArgument(
                "either configure tensorflow_session_parallelism or (tensorflow_intra_op_parallelism, "
                "tensorflow_inter_op_parallelism) separately; you cannot configure all"
            )

    @property
    def intra_op_threads(self) -> int:
        """Threads of one operation; 0 for the number of cores."""
        return self.session_parallelism or self.intra_op_parallelism

    @property
    def inter_op_threads(self) -> int:
        """Operations at the same time; 0 for one, in the caller's thread."""
        return self.session_parallelism or self.inter_op_parallelism
