"""Executor of another package: runs `model.onnx` with numpy. It shows how little a new executor needs.

The package imports nothing heavy. `pyproject.toml` of its distribution would have one line, under
`[project.entry-points."tpuserve.executors"]`: `onnx = "tests.server.executors.onnx:EXECUTOR"`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.executors.plugin import ExecutorContext, ExecutorPlugin, Runtime

if TYPE_CHECKING:
    from tpuserve_server.executors.candidate import Candidate

MODEL_FILE: Final = "model.onnx"


@dataclass(frozen=True, slots=True)
class OnnxOptions:
    """Limits of ONNX models."""

    most_nodes: Annotated[
        int, Setting("Models", "Maximum number of nodes of an ONNX model.", name="onnx_most_nodes", at_least=1)
    ] = 1000


def _make(context: ExecutorContext) -> "Candidate":
    from tests.server.executors.onnx.candidate import OnnxModels

    return OnnxModels(context.options[OnnxOptions], context.memory)


EXECUTOR: Final = ExecutorPlugin(
    Runtime("Numpy", "ONNX models", "numpy", ("numpy",), "tpuserve-onnx"), OnnxOptions, _make, (MODEL_FILE,)
)
