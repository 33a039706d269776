"""Walks a flat graph along its data, edits single nodes, and checks whether this machine can run its operations."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CannotLower, SourceUnreadable
from tpuserve_exporter.graphs.operation_libraries import load_libraries

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Operations whose results depend on the shape of their input, and not on its values.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "TensorListLength"})
# The result of a branch depends on its condition, which is a control input.
_WAITING = frozenset({"Merge"})
# Operations that return a resource or a reference unchanged.
_PASSING = frozenset({"Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "RefIdentity", "IdentityN"})
_PASSING |= {"NextIteration", "Exit"}


def node_of(tensor: str) -> str:
    """Return the node's name from a tensor name in another node's inputs: `node`, `node:1` or `^node`."""
    return tensor.removeprefix("^").split(":")[0]


class Walk:
    """The nodes of one flat graph by name, and walks along them."""

    def __init__(self, graph_def: "GraphDef") -> None:
        self.nodes = {node.name: node for node in graph_def.node}

    def before(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes whose values `tensors` depend on, their own nodes included, nearest first."""
        return self._collect(tensors, self.values_of)

    def reached(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes that `tensors` depend on by values or shapes, nearest first."""
        return self._collect(tensors, lambda node: (one for one in node.input if one[0] != "^"))

    def needed(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes that run for `tensors`, control inputs included."""
        return self._collect(tensors, lambda node: node.input)

    def _collect(self, tensors: Iterable[str], inputs: "Callable[[NodeDef], Iterable[str]]") -> dict[str, "NodeDef"]:
        found = {name: self.nodes[name] for name in map(node_of, tensors) if name in self.nodes}
        waiting = list(found.values())
        for node in waiting:
            for tensor in inputs(node):
                name = node_of(tensor)
                if name not in found and name in self.nodes:
                    found[name] = self.nodes[name]
                    waiting.append(self.nodes[name])
        return found

    def values_of(self, node: "NodeDef") -> list[str]:
        """Return the inputs whose values the result of `node` depends on."""
        if node.op in _SHAPES:
            return []
        return [one for one in node.input if one[0] != "^" or node.op in _WAITING]

    def after(self, names: Iterable[str]) -> set[str]:
        """Return the nodes whose values depend on the nodes `names`, these included."""
        consumers = defaultdict[str, list[str]](list)
        for node in self.nodes.values():
            for tensor in self.values_of(node):
                consumers[node_of(tensor)].append(node.name)
        found = set(names)
        waiting = list(found)
        for name in waiting:
            for consumer in consumers[name]:
                if consumer not in found:
                    found.add(consumer)
                    waiting.append(consumer)
        return found

    def root(self, tensor: str) -> str:
        """Return the node that makes a resource or reference: a variable, a table, or the placeholder of a capture."""
        node = self.nodes.get(node_of(tensor))
        seen = set[str]()
        while node is not None and node.op in _PASSING and node.name not in seen and node.input:
            seen.add(node.name)
            node = self.nodes.get(node_of(node.input[0]))
        return node_of(tensor) if node is None else node.name

    def back(self, tensor: str, passing: frozenset[str]) -> "Iterator[NodeDef]":
        """Yield each node on the way back from `tensor`. Continue only through operations in `passing`."""
        waiting, seen = [node_of(tensor)], set[str]()
        while waiting:
            node = self.nodes.get(waiting.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            yield node
            if node.op in passing:
                waiting += [node_of(one) for one in node.input if one[0] != "^"]


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
    called = find_called(graph_def, graph_def.node)
    kept = [function for function in graph_def.library.function if function.signature.name in called]
    del graph_def.library.function[:]
    graph_def.library.function.extend(kept)
    del graph_def.library.gradient[:]


def find_called(graph_def: "GraphDef", nodes: "Iterable[NodeDef]") -> "dict[str, FunctionDef]":
    """Return the library functions that `nodes` call, directly or through other functions, by name."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    found, waiting = dict[str, "FunctionDef"](), list(nodes)
    while waiting:
        for name in (called_by(waiting.pop()) & functions.keys()) - found.keys():
            found[name] = functions[name]
            waiting += functions[name].node_def
    return found


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
    """Check that TensorFlow knows all operations, with those of libraries that an extra installs.

    Raises MissingExtra for a library that is not installed, or SourceUnreadable with all unknown operations and their
    nodes.
    """
    from tensorflow.python.framework import op_def_registry

    by_op = _by_operation(graph_def)
    load_libraries(by_op)
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
    check_kernels(graph_def)


def check_kernels(graph_def: "GraphDef") -> None:
    """Check that all operations run on a CPU. Raises CannotLower with all others, and a node each."""
    by_op = _by_operation(graph_def)
    homeless = [f"{op} (node {name})" for op, name in by_op.items() if not has_kernel(op, "CPU", "DEFAULT")]
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


def has_kernel(operation: str, *devices: str) -> bool:
    """Return whether an operation has a kernel for one of the devices. `DEFAULT` means every device.

    TensorFlow defines TPU operations, but has no kernel for them without a TPU. Kernels of its compiler have a device
    of their own, `XLA_CPU_JIT`, and the first compilation in a process registers them.
    """
    from tensorflow.python.framework import kernels

    return any(one.device_type in devices for one in kernels.get_registered_kernels_for_op(operation).kernel)
