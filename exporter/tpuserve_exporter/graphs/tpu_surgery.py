"""Changes a graph of TPU training so that it runs on any device.

`tpu.rewrite` and `tpu.shard` put the model between TPUReplicatedInput and TPUReplicatedOutput. TPUEstimator also puts
it into a loop that takes its batches from the infeed. These operations have no kernel without a TPU, so even a restore
fails (`No OpKernel was registered to support Op 'TPUReplicatedInput'`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.graph_walk import Walk, find_called, node_of, pass_on, replace_operation

if TYPE_CHECKING:
    import tensorflow as tf
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


# These operations represent the TPU program, or start and stop the system, and compute nothing.
_NOTHING = frozenset({"ShutdownDistributedTPU", "TPUReplicateMetadata"})
_TEXT_FOR_NOTHING = frozenset({"ConfigureDistributedTPU", "TPUCompilationResult"})
# Calls of a function on a TPU core, which the last input selects.
_CALLS = frozenset({"TPUPartitionedCall"})
_CALL = ("Tin", "Tout", "f")
_SELECTORS = frozenset({"TPUOrdinalSelector", "TPURoundRobin"})
# With one replica, the output of these operations is their first input.
_ONE_OF_MANY = frozenset(
    {"TPUReplicatedInput", "TPUPartitionedInput", "TPUPartitionedInputV2", "CrossReplicaSum", "XlaSharding"}
)
# These operations give one input to every replica or partition.
_MANY_OF_ONE = {
    "TPUReplicatedOutput": "num_replicas",
    "TPUPartitionedOutput": "num_splits",
    "TPUPartitionedOutputV2": "num_splits",
}
# Names of outputs that differ from those of the operations that replace them.
_OUTPUTS = {
    "ConfigureDistributedTPU": "topology",
    "TPUOrdinalSelector": "device_ordinals",
    "TPUReplicatedOutput": "outputs",
    "TPURoundRobin": "device_ordinal",
}
_ATTRIBUTES = frozenset(
    {"_replication_info", "_post_device_rewrite", "_output_shapes", "_class", "_embedding_pipelining"}
)
_ATTRIBUTE_PREFIXES = ("_tpu_", "_xla_", "_Xla")


def remove_tpu_operations(graph_def: "GraphDef") -> "GraphDef":
    """Return a copy that runs on any device, in one replica. Node names stay, and shapes and placements are removed."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    lift_training_loops(copy)
    for node in copy.node:
        _make_plain(node)
    for function in copy.library.function:
        renamed = {f"{node.name}:{_OUTPUTS[node.op]}:" for node in function.node_def if node.op in _OUTPUTS}
        for node in function.node_def:
            _make_plain(node)
            node.input[:] = [_with_new_output(tensor, renamed) for tensor in node.input]
        for name, tensor in function.ret.items():
            function.ret[name] = _with_new_output(tensor, renamed)
    return copy


def find_tpu_operations(graph_def: "GraphDef") -> list[str]:
    """Return the operations that `remove_tpu_operations` replaces and that keep the graph from running elsewhere.

    Functions that the graph does not call, such as a training step, do not count.
    """
    replaced = {*_ONE_OF_MANY, *_MANY_OF_ONE, *_NOTHING, *_TEXT_FOR_NOTHING, *_CALLS, *_SELECTORS} - {"XlaSharding"}
    called = find_called(graph_def, graph_def.node).values()
    nodes = [*graph_def.node, *(node for one in called for node in one.node_def)]
    return sorted({node.op for node in nodes if node.op in replaced})


def _with_new_output(tensor: str, renamed: set[str]) -> str:
    """Return the name of a function's tensor after the replacement of its operation, whose output is `output`."""
    name, _, number = tensor.rpartition(":")
    return f"{name.partition(':')[0]}:output:{number}" if f"{name}:" in renamed else tensor


def _make_plain(node: "NodeDef") -> None:
    _remove_attributes(node)
    op, kind = node.op, _kind(node)
    if op in _ONE_OF_MANY:
        pass_on(node, node.input[0], kind)
    elif op in _MANY_OF_ONE:
        replicas = node.attr[_MANY_OF_ONE[op]].i
        replace_operation(node, "IdentityN", list(node.input[:1]) * replicas)
        node.attr["T"].list.type.extend([kind] * replicas)
    elif op in _CALLS:
        _call_here(node)
    elif op in _NOTHING:
        replace_operation(node, "NoOp", (one for one in node.input if one.startswith("^")))
    elif op in _TEXT_FOR_NOTHING:
        _make_constant(node, b"")
    elif op in _SELECTORS:
        _make_constant(node, 0 if op == "TPURoundRobin" else [0])


def _call_here(node: "NodeDef") -> None:
    """Make `node` call its function on any device."""
    data = [one for one in node.input if not one.startswith("^")]
    attributes = {name: type(node.attr[name]).FromString(node.attr[name].SerializeToString()) for name in _CALL}
    replace_operation(node, "StatefulPartitionedCall", [*data[:-1], *(one for one in node.input if one not in data)])
    for name, value in attributes.items():
        node.attr[name].CopyFrom(value)


def _make_constant(node: "NodeDef", value: bytes | int | list[int]) -> None:
    import tensorflow as tf

    tensor = tf.make_tensor_proto(value, dtype=tf.string if isinstance(value, bytes) else tf.int32)
    replace_operation(node, "Const", (one for one in node.input if one.startswith("^")))
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)


def _kind(node: "NodeDef") -> int:
    """Return the dtype that `node` passes on, or 0. Reading a missing attribute would create it."""
    return node.attr["T"].type if "T" in node.attr else 0


def _remove_attributes(node: "NodeDef") -> None:
    node.device = ""
    for name in list(node.attr):
        if name in _ATTRIBUTES or name.startswith(_ATTRIBUTE_PREFIXES):
            del node.attr[name]


def replace_inputs(graph_def: "GraphDef", inputs: "Mapping[str, tuple[str, tf.TensorSpec]]") -> None:
    """Replace each tensor (`node` or `node:1`) by a placeholder with a name and a spec, in `graph_def`."""
    for node in graph_def.node:
        for index, tensor in enumerate(node.input):
            if tensor in inputs:
                node.input[index] = inputs[tensor][0]
    for name, spec in inputs.values():
        placeholder = graph_def.node.add(name=name, op="Placeholder")
        placeholder.attr["dtype"].type = spec.dtype.as_datatype_enum
        placeholder.attr["shape"].shape.CopyFrom(spec.shape.as_proto())


def leave_training_loop(graph_def: "GraphDef", fetched: Iterable[str]) -> None:
    """Take the nodes `fetched` out of the loops around them, in `graph_def`. They then compute a first iteration.

    Loops and branches of the model itself stay. Control dependencies are removed, because they would keep the training
    step. The exceptions mark a constant as part of a loop or a branch that stays.
    """
    frames = _find_frames(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    left = {frame for name in fetched for frame in _enclosing(frames[name])}
    of_loop = {node.name for node in graph_def.node if frames[node.name] in left and _is_of_loop(node, nodes)}
    pivots = {node.name for node in graph_def.node if _is_pivot(node, nodes, of_loop)}
    for node in graph_def.node:
        frame = frames[node.name]
        stays = bool(frame) and frame not in left
        kept = [
            one
            for one in node.input
            if one[0] != "^" or (stays and frames[node_of(one)] == frame) or node_of(one) in pivots
        ]
        del node.input[:]
        node.input.extend(kept)
    for name in of_loop:
        _unroll_once(nodes[name])


def _is_of_loop(node: "NodeDef", nodes: "Mapping[str, NodeDef]") -> bool:
    """Return whether `node` controls a loop. Branches use operations of the same names."""
    if node.op == "Merge":
        return any(nodes[node_of(one)].op == "NextIteration" for one in node.input)
    return bool(node.op == "Enter" or (node.op == "Switch" and nodes[node_of(node.input[1])].op == "LoopCond"))


def _is_pivot(node: "NodeDef", nodes: "Mapping[str, NodeDef]", of_loop: set[str]) -> bool:
    """Return whether `node` is one side of a branch, which the constants in it wait for."""
    before = nodes.get(node_of(node.input[0])) if node.op == "Identity" and node.input else None
    return before is not None and before.op == "Switch" and before.name not in of_loop


def _unroll_once(node: "NodeDef") -> None:
    """Make `node` do what it does in the first iteration of its loop."""
    kind, value = _kind(node), node.input[0]
    if node.op == "Switch":
        replace_operation(node, "IdentityN", [value, value])
        node.attr["T"].list.type.extend([kind, kind])
    else:
        pass_on(node, value, kind)


_Frame = tuple[str, ...]


def _enclosing(frame: _Frame) -> Iterator[_Frame]:
    return (frame[:depth] for depth in range(1, len(frame) + 1))


def _find_frames(graph_def: "GraphDef") -> dict[str, _Frame]:
    """Return the loops around each node, outermost first. `Enter` leads into a loop, `Exit` out of it."""
    consumers = defaultdict[str, list["NodeDef"]](list)
    for node in graph_def.node:
        for tensor in node.input:
            consumers[node_of(tensor)].append(node)
    frames = {node.name: () for node in graph_def.node if not node.input}  # type: dict[str, _Frame]
    queue = list(frames)
    for name in queue:
        for node in consumers[name]:
            if node.name not in frames:
                frames[node.name] = _frame_after(node, frames[name])
                queue.append(node.name)
    return defaultdict(tuple, frames)


def find_looping(graph_def: "GraphDef") -> set[str]:
    """Return the names of nodes in a TensorFlow 1 loop."""
    return {name for name, frame in _find_frames(graph_def).items() if frame}


def _frame_after(node: "NodeDef", frame: _Frame) -> _Frame:
    if node.op == "Enter":
        return (*frame, node.attr["frame_name"].s.decode())
    return frame[:-1] if node.op == "Exit" else frame


def reached(graph_def: "GraphDef", fetched: Sequence[str]) -> list["NodeDef"]:
    """Return the nodes that the nodes `fetched` depend on by data, nearest first."""
    return list(Walk(graph_def).reached(fetched).values())
