"""Lifts training steps out of TensorFlow 2 training loops, where one `While` node calls the step as a function."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_LOOPS = frozenset({"While", "StatelessWhile"})


def lift_training_loops(graph_def: "GraphDef") -> None:
    """Move the nodes of each training step that reads from the infeed into `graph_def` itself.

    The nodes compute a first iteration. They keep their names, or become `NAME_in_loop` if the name is taken.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    for loop in [node for node in graph_def.node if node.op in _LOOPS]:
        body = functions.get(loop.attr["body"].func.name)
        if body is not None and any(node.op.startswith("InfeedDequeue") for node in body.node_def):
            _lift(graph_def, loop, body)


def _lift(graph_def: "GraphDef", loop: "NodeDef", body: "FunctionDef") -> None:
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    step, _ = function_def_to_graph_def(body)
    arguments = dict(zip([argument.name for argument in body.signature.input_arg], loop.input, strict=False))
    there = {node.name for node in graph_def.node}
    names = {node.name: f"{node.name}_in_loop" if node.name in there else node.name for node in step.node}
    for node in step.node:
        if node.name not in arguments:
            lifted = graph_def.node.add()
            lifted.CopyFrom(node)
            lifted.name = names[node.name]
            del lifted.input[:]
            lifted.input.extend(_rewire(tensor, arguments, names) for tensor in node.input)


def _rewire(tensor: str, arguments: dict[str, str], names: dict[str, str]) -> str:
    """Return the graph's name for a tensor of the function. An argument becomes the loop's input."""
    control = "^" if tensor.startswith("^") else ""
    name, colon, index = tensor.removeprefix("^").partition(":")
    if name in arguments:
        return control + (arguments[name].split(":")[0] if control else arguments[name])
    return f"{control}{names[name]}{colon}{index}".removesuffix(":0")
