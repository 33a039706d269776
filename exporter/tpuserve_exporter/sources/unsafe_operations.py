"""Refuses graphs with operations that a server would refuse, before TensorFlow runs them."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from tpuserve_exporter.errors import UnsafeOperation
from tpuserve_formats.safety.screening import Finding, describe_findings, operations_of, screen_nodes

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

# A source without the process that made its Python functions cannot run them. The check of the version refuses them.
PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def check_graph(name: str, graph_def: "GraphDef", allowed: Collection[str]) -> None:
    """Check a graph all of whose nodes run, except for Python functions. Raises UnsafeOperation."""
    refuse(name, screen_nodes(graph_def.SerializeToString()), {*allowed, *PYTHON})


def refuse(name: str, findings: Sequence[Finding], allowed: Collection[str]) -> None:
    """Raise UnsafeOperation for findings, unless `allowed` has all of their operations."""
    refused = [one for one in findings if one.operation not in allowed]
    if refused:
        names = operations_of(refused)
        options = " ".join(f"--allow-op {one}" for one in names)
        raise UnsafeOperation(
            f"{name} has operations that servers refuse: {describe_findings(refused)}. Build the model without "
            f"them. If you trust its author, use {options}; servers then need --allowed_ops={','.join(names)}",
            operations=[str(one) for one in refused],
        )
