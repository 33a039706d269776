"""The leading arithmetic of a model, and the pixel values that it expects."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.signatures.preparation import BINARY, PASSING, GraphWalk, PixelValues, combine, compute_constant
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef


# A walk of an image through a StableHLO module, the form of JAX and PyTorch models in a TensorFlow graph.
#
# jaxlib's MLIR bindings are private. If they fail, the walk ends at the module.

_MOVED_BY = ("reverse", "slice", "dynamic_slice", "concatenate", "pad", "dynamic_pad", "gather", "dynamic_gather")
_MOVING = frozenset(f"stablehlo.{name}" for name in _MOVED_BY)
_SHAPE_ONLY = frozenset({"stablehlo.get_dimension_size", "sdy.sharding_constraint"})

# MLIR's bindings are untyped here.
_Value = Any
_Constant = Callable[[int], Array | None]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a function of the module. `constant` returns the known value of an argument by its number."""

    constant: _Constant
    caller: "_Call | None" = None
    operation: _Value = None


def walk_module(pixels: PixelValues, node: "NodeDef", index: int, constant: _Constant) -> Iterator[PixelValues]:
    """Continue a walk in the module that `node` calls, from the node's input number `index`."""
    try:
        found = list(_walk(pixels, node, index, constant))
    except Exception:  # a private interface may change in any way, and jaxlib may not be installed
        found = [pixels]
    yield from found


def _walk(pixels: PixelValues, node: "NodeDef", index: int, constant: _Constant) -> Iterator[PixelValues]:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, node.attr["module"].s)
        functions = {operation.name.value: operation for operation in module.body.operations}
        arguments = functions["main"].entry_block.arguments
        # The platform index may precede the node's inputs.
        ahead = len(arguments) - len(node.input)
        outermost = _Call(lambda number: constant(number - ahead) if number >= ahead else None)
        yield from _Walker(functions).follow(pixels, outermost, arguments[index + ahead])


@dataclass(frozen=True, slots=True)
class _Walker:
    functions: dict[str, _Value]

    def follow(self, pixels: PixelValues, call: _Call, value: _Value) -> Iterator[PixelValues]:
        for use in value.uses:
            yield from self._through(pixels, call, use.owner, use.operand_number)

    def _through(self, pixels: PixelValues, call: _Call, owner: _Value, index: int) -> Iterator[PixelValues]:
        operation = owner.operation
        name = operation.name
        if name in _SHAPE_ONLY:
            return
        if name in ("func.return", "stablehlo.return"):
            if call.caller is not None:
                yield from self.follow(pixels, call.caller, call.operation.results[index])
        elif name in ("func.call", "call"):
            entry = self.functions[operation.attributes["callee"].value].entry_block
            inner = _Call(lambda number: self._constant(call, operation.operands[number]), call, operation)
            yield from self.follow(pixels, inner, entry.arguments[index])
        elif name in PASSING or name in _MOVING:
            yield from self.follow(pixels, call, operation.results[0])
        elif (changed := self._change(pixels, call, operation, index)) is not None:
            yield from self.follow(changed, call, operation.results[0])
        else:
            yield pixels

    def _change(self, pixels: PixelValues, call: _Call, operation: _Value, index: int) -> PixelValues | None:
        if operation.name not in BINARY:
            return None
        name = operation.name.removeprefix("stablehlo.")
        return combine(pixels, operation.name, name, self._constant(call, operation.operands[1 - index]), index)

    def _constant(self, call: _Call, value: _Value) -> Array | None:
        from jaxlib.mlir import ir

        if isinstance(value.owner, ir.Block):
            return call.constant(ir.BlockArgument(value).arg_number)
        operation = value.owner.operation
        if operation.name == "stablehlo.constant":
            return _read_dense(operation.attributes["value"])
        operands: Sequence[_Value] = list(operation.operands)[: 1 if operation.name in PASSING else None]
        values = [self._constant(call, one) for one in operands]
        known = [one for one in values if one is not None]
        return compute_constant(operation.name, known) if known and len(known) == len(values) else None


def _read_dense(attribute: _Value) -> Array | None:
    from jaxlib.mlir import ir

    value = np.array(ir.DenseElementsAttr(attribute))
    return value.astype(np.float64) if value.dtype.kind in "iuf" else None


@dataclass(frozen=True, slots=True)
class LeadingArithmetic:
    """The model's first operations on an image: one entry for each operation that takes their result."""

    found: tuple[PixelValues, ...]

    @property
    def is_for_bytes(self) -> bool:
        """Whether every path through the model begins by normalizing values of 0 to 255."""
        return bool(self.found) and all(one.are_of_bytes for one in self.found)

    @property
    def is_for_units(self) -> bool:
        """Whether every path through the model begins by normalizing values of 0 to 1."""
        return bool(self.found) and all(one.are_of_units for one in self.found)

    def __str__(self) -> str:
        """Return the operations of the first path, such as `rescaling/mul: * 0.00392157`, or an empty text."""
        return ", ".join(next((one.operations for one in self.found if one.operations), ()))


def find_leading(
    graph: "tf.types.experimental.ConcreteFunction", inputs: Sequence[str], name: str
) -> LeadingArithmetic:
    """Find the leading arithmetic of the input `name`. `inputs` names the inputs of `graph` in order."""
    placeholders = [tensor.op.name for tensor in graph.inputs]
    captures = dict(zip(placeholders[len(inputs) :], graph.captured_inputs, strict=True))
    by_input = _by_input(graph, placeholders[: len(inputs)], inputs)
    walk = GraphWalk(graph.graph.as_graph_def(), captures, walk_module)
    return LeadingArithmetic(tuple(walk.run(by_input[name])))


def _by_input(
    graph: "tf.types.experimental.ConcreteFunction", placeholders: Sequence[str], inputs: Sequence[str]
) -> dict[str, str]:
    """Map inputs to placeholders. TensorFlow sorts keyword arguments by name and names placeholders after them."""
    import tensorflow as tf

    flat = tf.nest.flatten(graph.structured_input_signature)
    named = {spec.name: placeholder for spec, placeholder in zip(flat, placeholders, strict=True)}
    return {name: named.get(name, placeholder) for name, placeholder in zip(inputs, placeholders, strict=True)}
