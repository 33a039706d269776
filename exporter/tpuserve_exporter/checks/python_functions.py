"""Refuses versions that call Python code, which runs only in the process that traced it, and never in a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.inspection.operations import find_needed
from tpuserve_exporter.sources.saved_model.file import read_saved_model

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def check_no_python(version: Path) -> None:
    """Raise CannotLower, with the nodes, if a signature of `version` depends on a Python function.

    The other checks cannot find it, because the process of the export may hold the function.
    """
    found = sorted(
        {
            f"{node.op} (node {node.name})"
            for meta_graph in read_saved_model(version).meta_graphs
            for part in find_needed(meta_graph.graph_def, _outputs(meta_graph))
            for node in part
            if node.op in _PYTHON
        }
    )
    if found:
        raise CannotLower(
            f"the outputs depend on Python functions: {', '.join(found)}. A version holds the graph without their "
            "code, so that no server can run them. Use TensorFlow operations instead, or serve a tensor before them"
        )


def _outputs(meta_graph: "MetaGraphDef") -> Iterator[str]:
    for signature in meta_graph.signature_def.values():
        for output in signature.outputs.values():
            yield from _tensors(output)


def _tensors(info: "TensorInfo") -> Iterator[str]:
    """Yield the names of a tensor, or of the components of a ragged one."""
    if info.name:
        yield info.name
    for component in info.composite_tensor.components:
        yield from _tensors(component)
