"""Finds the batch statistics, random numbers and assignments that the outputs of a graph depend on."""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.graphs.batch_statistics import RowAxes, StatisticsFinder
from tpuserve_exporter.graphs.changing_operations import is_generator, is_random, is_write, roots_read
from tpuserve_exporter.graphs.function_inlining import inline_to_analyse
from tpuserve_exporter.graphs.graph_walk import Walk, node_of

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


# Operations between the exponentials of a softmax and their sum.
_OF_SOFTMAX = frozenset({"stablehlo.multiply", "stablehlo.convert", "stablehlo.select", "stablehlo.reshape"})
# Operations between that sum and the division by it.
_BETWEEN = frozenset({"stablehlo.abs", "stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})
_BETWEEN |= {"stablehlo.dynamic_broadcast_in_dim", "stablehlo.optimization_barrier"}


def find_averages(program: bytes, fed: Sequence[int], count: int) -> list[str] | None:
    """Return the places of sums over rows and of batch norms in training mode.

    Rows are the first dimension of the arguments that depend on inputs: numbers `fed` of the last `count`. Return None
    if jaxlib is missing or cannot read the program.
    """
    if importlib.util.find_spec("jaxlib") is None:
        return None
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, program)
        except (ValueError, ir.MLIRError):
            return None
        operations = list(_walk(module.operation))
        main = next(one for one in operations if one.name == "func.func" and _symbol(one) == "main")
        arguments = list(main.regions[0].blocks[0].arguments)[-count:]
        rows = {size for index in fed for size in _first_size(arguments[index])}
        return [f"{one.name} {_place(one)}".strip() for one in operations if _averages(one, rows)]


def _walk(operation: Any) -> Iterator[Any]:  # noqa: ANN401 - MLIR's bindings are untyped here
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _walk(one.operation)


def _symbol(operation: Any) -> str:  # noqa: ANN401
    return str(operation.attributes["sym_name"].value)


def _averages(operation: Any, rows: set[int | None]) -> bool:  # noqa: ANN401
    if operation.name == "stablehlo.batch_norm_training":
        return True
    if operation.name != "stablehlo.reduce" or 0 not in list(operation.attributes["dimensions"]):
        return False
    taken = operation.operands[0]
    adds = [one.operation.name for one in operation.regions[0].blocks[0].operations]
    is_softmax = _is_of_powers(taken) and _divides(operation.results[0])
    return "stablehlo.add" in adds and bool(set(_first_size(taken)) & rows) and not is_softmax


def _first_size(value: Any) -> list[int | None]:  # noqa: ANN401
    """Return a list with the first dimension, or None if it is free. The list is empty for a scalar or a single row."""
    from jaxlib.mlir import ir

    shape = ir.RankedTensorType(value.type)
    if not shape.rank:
        return []
    if shape.is_dynamic_dim(0):
        return [None]
    return [shape.get_dim_size(0)] if shape.get_dim_size(0) > 1 else []


def _divides(value: Any) -> bool:  # noqa: ANN401
    """Return whether the program divides by `value` or takes its logarithm. In an average, `value` is divided."""
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            owner = use.owner
            if owner.name == "stablehlo.log" or (owner.name == "stablehlo.divide" and use.operand_number == 1):
                return True
            if owner.name in _BETWEEN:
                waiting += owner.results
    return False


def _is_of_powers(value: Any) -> bool:  # noqa: ANN401
    from jaxlib.mlir import ir

    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, ir.Block):
            continue
        if owner.name == "stablehlo.exponential":
            return True
        if owner.name in _OF_SOFTMAX:
            waiting += owner.operands
    return False


def _place(operation: Any) -> str:  # noqa: ANN401
    """Return the operation's name in the source code, or an empty string if the program has none."""
    text = str(operation.location)
    return text.split('"')[1] if text.startswith('loc("') and "/" in text.split('"')[1] else ""


# A larger constant holds weights. Smaller ones may hold axes, shapes or seeds.
_LARGE_BYTES = 65536
_CALLS = re.compile(r"(^|/)(Stateful)?PartitionedCall(_\d+)?(?=/)")
# The part of an operation's name after the name of its layer.
_OWN = re.compile(r"/(stateless_|stateful_|random_|truncated_|dropout/|Assign|Random|Stateless).*")


@dataclass(frozen=True, slots=True)
class Dependence:
    """The operations (`statistics`) and layers that outputs depend on, by name.

    Layers in `assigned` change variables or tables that the outputs read. Layers in `written` change any variable or
    table. `sees_all` is False if a program cannot be read.
    """

    statistics: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    sees_all: bool = True


def find_dependence(
    graph_def: "GraphDef", outputs: Sequence[str], inputs: Mapping[str, tuple[int | None, ...]]
) -> Dependence:
    """Return what the tensors `outputs` depend on. `inputs` are the shapes of fed placeholders, by name."""
    import tensorflow as tf

    names = list(dict.fromkeys(map(node_of, outputs)))
    part = tf.compat.v1.graph_util.extract_sub_graph(without_weights(graph_def), names)
    flat, ends = inline_to_analyse(part, outputs)
    walk = Walk(flat)
    before = walk.before(ends)
    random = [node for node in before.values() if is_random(node, walk)]
    assigned, written = _find_writes(walk, before, ends, random)
    programs = [node for node in before.values() if node.op == "XlaCallModule"]
    in_programs = [_find_in_program(node, walk, inputs) for node in programs]
    for node in programs:
        node.attr["module"].s = b""  # it may hold weights; shape inference would copy them per batch size
    statistics = _find_statistics(flat, walk, ends, inputs) + [one for found in in_programs for one in found or ()]
    return Dependence(
        statistics=_places(statistics),
        random=_layers(node.name for node in random),
        assigned=_layers(assigned),
        written=_layers(written),
        sees_all=None not in in_programs,
    )


def _find_writes(
    walk: Walk, before: "Mapping[str, NodeDef]", ends: Sequence[str], random: "Sequence[NodeDef]"
) -> tuple[list[str], list[str]]:
    """Return the operations that change what the outputs read, and the operations that change anything.

    The states of random generators do not count. `before` are the nodes that the outputs depend on.
    """
    writes = [node for node in walk.needed(ends).values() if is_write(node)]
    seeds = roots_read(walk, (one for node in random for one in walk.before(node.input).values()))
    generators = [node for node in before.values() if is_generator(node)]
    seeds |= {walk.root(node.input[0]) for node in generators}
    written = {walk.root(node.input[0]): node.name for node in writes}
    written = {root: place for root, place in written.items() if root not in seeds}
    read = roots_read(walk, before.values()) | {walk.root(node.input[0]) for node in writes if node.name in before}
    return [place for root, place in written.items() if root in read], list(written.values())


def without_weights(graph_def: "GraphDef") -> "GraphDef":
    """Return a copy with placeholders for large constants, because each later step would copy frozen weights."""
    light = type(graph_def)()
    light.versions.CopyFrom(graph_def.versions)
    for node in graph_def.node:
        _copy_light(node, light.node.add())
    for function in graph_def.library.function:
        copy = light.library.function.add(signature=function.signature, ret=function.ret)
        copy.control_ret.update(function.control_ret)
        for node in function.node_def:
            _copy_light(node, copy.node_def.add())
    return light


def _copy_light(node: "NodeDef", copy: "NodeDef") -> None:
    if node.op == "Const" and node.ByteSize() > _LARGE_BYTES:
        copy.name, copy.op = node.name, "Placeholder"
        copy.attr["dtype"].CopyFrom(node.attr["dtype"])
        copy.attr["shape"].shape.CopyFrom(node.attr["value"].tensor.tensor_shape)
    else:
        copy.CopyFrom(node)


def _find_statistics(
    flat: "GraphDef", walk: Walk, ends: Sequence[str], inputs: Mapping[str, tuple[int | None, ...]]
) -> list[str]:
    """Return the averages over rows that an output with rows depends on."""
    try:
        axes: RowAxes | None = RowAxes(flat, inputs)
    except ValueError:
        axes = None
    finder = StatisticsFinder(walk, axes, walk.after(inputs))
    met = walk.before(end for end in ends if finder.has_rows(end))
    return [node.name for node in met.values() if finder.averages_rows(node)]


def _find_in_program(program: "NodeDef", walk: Walk, inputs: Iterable[str]) -> list[str] | None:
    """Return the averages in a StableHLO program, or None for a program that cannot be read."""
    of_rows = walk.after(inputs)
    arguments = [node_of(one) for one in program.input if one[0] != "^"]
    fed = [index for index, name in enumerate(arguments) if name in of_rows]
    return find_averages(program.attr["module"].s, fed, len(arguments)) if fed else []


def _places(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without the calls in them, which leaves the names within the functions of the layers."""
    return tuple(sorted({_CALLS.sub("", name).removeprefix("/") for name in names}))


def _layers(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_OWN.sub("", name) for name in _places(names)}))
