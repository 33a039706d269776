"""Runs SavedModels with TensorFlow on the CPU: declaration and options."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.executors.plugin import ExecutorContext, ExecutorOptions, ExecutorPlugin, Runtime, SafetyOptions

if TYPE_CHECKING:
    from tpuserve_formats.messages.official import ConfigProto
    from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand

TENSORFLOW: Final = Runtime("TensorFlow", "SavedModels", "tensorflow", ("tensorflow",), "tpuserve-server[tensorflow]")

DEFAULT_TAGS = ("serve",)
_MODEL_FILES: Final = ("saved_model.pb", "saved_model.pbtxt")


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
        FileName | None,
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
    # Those of SafetyOptions.
    allowed_ops: tuple[str, ...] = ()
    lenient_loads: bool = False

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


def saved_models(context: ExecutorContext) -> "TensorFlowOnDemand":
    """Return a candidate for every version. Raises the operator's error if the session's file does not parse."""
    from tpuserve_formats.messages.official import ConfigProto
    from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand

    options, safety = context.options[TensorFlowOptions], context.options[SafetyOptions]
    config = None
    if options.session_config_file is not None:
        config = ConfigProto()
        context.read_message(options.session_config_file, config)
    options = replace(
        options, session_config=config, allowed_ops=safety.allowed_ops, lenient_loads=safety.lenient_loads
    )
    return TensorFlowOnDemand(options, context.memory, context.metrics)


def _runs(_options: ExecutorOptions, _version_path: Path) -> bool:
    return TENSORFLOW.is_installed


def _check_version(options: ExecutorOptions, version_path: Path) -> None:
    """Check the graph that TensorFlow would load, without TensorFlow. Reads the whole file; blocks.

    Raises:
        NotFound: no graph has the tags that the server loads.
        MissingRuntime: a library of the graph's operations is not installed.
        FailedPrecondition: the graph has operations that the server refuses, or the version cannot answer.
        InvalidArgument: the file is damaged, or an asset is outside the version.
    """
    from google.protobuf.message import DecodeError

    from tpuserve_formats.errors import FormatError
    from tpuserve_formats.safety.graph import read_graphs
    from tpuserve_server.executors.tensorflow.graph_needs import choose_graph, find_libraries
    from tpuserve_server.executors.tensorflow.run_graph import check_operations, find_missing_values

    # `saved_model.pbtxt` is checked at load, because only TensorFlow parses it as its loader does.
    file = version_path / _MODEL_FILES[0]
    if not file.is_file():
        return
    try:
        graphs = list(read_graphs(file.read_bytes()))
    except (FormatError, DecodeError) as error:
        raise InvalidArgument(f"{file.name} is damaged. Copy or export the version again") from error
    tags, safety = options[TensorFlowOptions].tags, options[SafetyOptions]
    chosen = choose_graph(graphs, tags)
    check_operations(graphs, tags, safety.allowed_ops)
    find_libraries(chosen.operations())
    missing = None if safety.lenient_loads else find_missing_values(chosen, version_path)
    if missing is not None and missing.fails_version:
        raise missing.error()


EXECUTOR: Final = ExecutorPlugin(
    TENSORFLOW, TensorFlowOptions, saved_models, _MODEL_FILES, runs=_runs, check_version=_check_version
)
