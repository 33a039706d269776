"""Checks whether this machine can run and save a graph's operations, and edits single nodes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CannotLower, SourceUnreadable

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

RESOURCE_VARIABLE = "VarHandleOp"
_REFERENCE_VARIABLES = frozenset({"VariableV2", "Variable"})


def is_variable(node: "NodeDef") -> bool:
    """Return whether `node` is a resource variable, or a reference variable of early TensorFlow 1."""
    return node.op == RESOURCE_VARIABLE or node.op in _REFERENCE_VARIABLES


def replace_operation(node: "NodeDef", operation: str, inputs: Iterable[str]) -> None:
    """Make `node` another operation of the same name, without attributes."""
    kept = list(inputs)
    node.op = operation
    node.attr.clear()
    del node.input[:]
    node.input.extend(kept)


def pass_on(node: "NodeDef", tensor: str, kind: int, *control_inputs: str) -> None:
    """Make `node` an Identity of `tensor`, whose dtype is `kind`."""
    replace_operation(node, "Identity", [tensor, *control_inputs])
    node.attr["T"].type = kind


def drop_unused_functions(graph_def: "GraphDef") -> None:
    """Remove the library functions that the graph does not call, such as a training step or its gradients."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    used = set[str]()
    waiting = list(graph_def.node)
    while waiting:
        called = (called_by(waiting.pop()) & functions.keys()) - used
        used |= called
        waiting += [node for name in called for node in functions[name].node_def]
    kept = [function for name, function in functions.items() if name in used]
    del graph_def.library.function[:]
    graph_def.library.function.extend(kept)
    del graph_def.library.gradient[:]


def called_by(node: "NodeDef") -> set[str]:
    """Return the names of the functions that a node may call, and possibly other names.

    The result includes the name of the node's operation, and an empty string.
    """
    values = node.attr.values()
    return {node.op} | {one.func.name for one in values} | {one.name for value in values for one in value.list.func}


def _by_operation(graph_def: "GraphDef") -> dict[str, str]:
    """Return each operation with the name of one node that has it."""
    functions = {function.signature.name for function in graph_def.library.function}
    nodes = [*graph_def.node, *(node for one in graph_def.library.function for node in one.node_def)]
    return {node.op: node.name for node in reversed(nodes) if node.op not in functions}


def check_known(graph_def: "GraphDef") -> None:
    """Check that TensorFlow knows all operations. Raises SourceUnreadable with all unknown ones and their nodes."""
    from tensorflow.python.framework import op_def_registry

    by_op = _by_operation(graph_def)
    unknown = [f"{op} (node {name})" for op, name in by_op.items() if op_def_registry.get(op) is None]
    if unknown:
        raise SourceUnreadable(
            f"this TensorFlow does not have operations that the graph needs: {', '.join(sorted(unknown))}. They "
            "belong to a library that servers do not have either. Save the model without them"
        )


def check_operations(graph_def: "GraphDef") -> None:
    """Check that this machine can run all operations.

    Raises:
        SourceUnreadable: if TensorFlow does not know an operation.
        CannotLower: if an operation keeps state other than variables, or does not run on a CPU.

    Both errors list all such operations, with a node each.
    """
    check_known(graph_def)
    by_op = _by_operation(graph_def)
    stateful = [f"{op} (node {name})" for op, name in by_op.items() if _makes_resource(op)]
    if stateful:
        raise CannotLower(
            f"the graph keeps state other than variables: {', '.join(sorted(stateful))}. Remove it from the served "
            "part of the model"
        )
    homeless = [f"{op} (node {name})" for op, name in by_op.items() if not _runs_on_cpu(op)]
    if homeless:
        raise CannotLower(
            f"some operations of the graph run only on a TPU: {', '.join(sorted(homeless))}. Serve a tensor before "
            "them, or build the graph without them (--model)"
        )


def _makes_resource(op: str) -> bool:
    """Return whether `op` makes a lookup table, iterator, queue or stack, which the saved function cannot hold."""
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    outputs = {arg.type for arg in definition.output_arg}
    makes = definition.is_stateful and types_pb2.DT_RESOURCE in outputs and not definition.input_arg
    return makes and op not in (RESOURCE_VARIABLE, "Placeholder")


def _runs_on_cpu(op: str) -> bool:
    """Return whether `op` has a kernel for the CPU.

    DEFAULT means every device. TensorFlow defines TPU operations, but has no kernel for them without a TPU.
    """
    from tensorflow.python.framework import kernels

    return bool({"CPU", "DEFAULT"} & {one.device_type for one in kernels.get_registered_kernels_for_op(op).kernel})
