"""Finds sizes of inputs at which TensorFlow returns memory that it has not written, or ends the process.

With oneDNN, a convolution whose output has no elements returns an array of its input's shape, with earlier contents of
the memory, and MaxPool divides by the size 0. The search reads the least harmless sizes off TensorFlow's own shape
functions (docs/explanation/decisions/0084-the-graph-sets-the-least-sizes-of-inputs.md).
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tpuserve_formats.messages.official import FunctionDef, GraphDef, NodeDef, TensorProto
from tpuserve_formats.safety.attributes import called_by
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tensorflow import c_api
from tpuserve_server.executors.tensorflow.run_graph import RunGraph, read_definitions, read_head

_log = logging.getLogger(__name__)

_WINDOWS: Final = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D"})
# Number of last dimensions that must not be empty, of other operations.
_INNER: Final = {"RFFT": 1, "RFFT2D": 2, "RFFT3D": 3, "IRFFT": 1, "IRFFT2D": 2, "IRFFT3D": 3, "EncodePng": 3}
_FRAGILE: Final = _WINDOWS | _INNER.keys()
# Data types, for attributes that a SavedModel omits (tensorflow/core/ops/nn_ops.cc, spectral_ops.cc, image_ops.cc).
_FLOAT, _UINT8, _COMPLEX64 = 1, 4, 8
_CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_PLACEHOLDERS: Final = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})
# An empty output of these is harmless, but their shape functions refuse the size.
_HARMLESS: Final = frozenset({"AvgPool", "AvgPool3D"})
# TensorFlow's error for a window that is larger than its input (tensorflow/core/framework/common_shape_fns.cc).
_TOO_SMALL: Final = re.compile(r"Negative dimension size .*? for '\{\{node (\S+)\}\} = (\w+)\[", re.DOTALL)
# The search covers sizes up to this one.
_LARGEST: Final = 1 << 12
# Size of the other free dimensions, if the shapes depend on numbers that TensorFlow computes from all of them.
_OTHERS: Final = 64
# CPU time of a version's search. ResNet-50 takes 0.5 s, Inception v3 with two signatures 1.3 s.
_BUDGET_S: Final = 2.0
# The shape functions read small constants only.
_LARGE_BYTES: Final = 1 << 12

# None is an unknown rank, and None in it is an unknown size.
_Shape: TypeAlias = tuple[int | None, ...] | None
# Name of an input, and a dimension of it.
Dimension: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LeastSize:
    """A least size, and the operation that sets it.

    It has one dimension, or several of which at least one must have the size: a smaller one may be repeated for it.
    """

    dimensions: tuple[Dimension, ...]
    size: int
    operation: str

    def check(self, servable_id: ServableId, inputs: Tensors) -> None:
        """Raise InvalidArgument if the dimension is smaller."""
        for name, dimension in self.dimensions:
            shape = inputs[name].shape
            if dimension >= len(shape) or shape[dimension] >= self.size:
                return
        name, dimension = self.dimensions[0]
        raise InvalidArgument(
            f"model {servable_id.name} version {servable_id.version}: input '{name}' has shape "
            f"{list(inputs[name].shape)}, but dimension {dimension} must be at least {self.size}, because "
            f"{self.operation} would have an empty input or output"
        )


def find_least_sizes(
    meta_graph: bytes,
    graph: RunGraph,
    signatures: Iterable[Signature],
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, tuple[LeastSize, ...]]:
    """Return the least sizes of each signature that has some. Blocks, for about two seconds of CPU time at most.

    Searches only graphs with a fragile operation, and with inputs that have free dimensions.
    """
    deadline = clock() + _BUDGET_S
    found = dict[str, list[LeastSize]]()
    for signature in signatures:
        free = [
            (name, dimension)
            for name, spec in signature.inputs.items()
            for dimension, size in enumerate(spec.shape or ())
            if size is None
        ]
        if not free or not any(node.op in _FRAGILE for node in graph.run_by(signature)):
            continue
        search = _Search(_ScratchGraph(meta_graph, signature), free, lambda: clock() > deadline)
        try:
            for dimension in free:
                found.setdefault(signature.name, []).extend(search.find(dimension))
            if harmed := search.find_together(found[signature.name]):
                _log.warning("Signature %r: inputs may be too small for %s together", signature.name, harmed)
        except TimeoutError:
            _log.warning(
                "Signature %r: the search for the least sizes of its inputs took more than %g s of CPU time. It "
                "found none from dimension %d of %r on, where clients may send sizes that are too small",
                signature.name, _BUDGET_S, dimension[1], dimension[0],
            )  # fmt: skip
    return {name: tuple(dict.fromkeys(sizes)) for name, sizes in found.items() if sizes}


@dataclass(frozen=True, slots=True)
class _Probe:
    """A fragile operation, and the tensors of its first input and its output."""

    op: str
    name: str
    source: str
    target: str
    source_dtype: int
    target_dtype: int

    def is_harmed(self, source: _Shape, target: _Shape) -> bool:
        """Return whether the operation would return memory that it has not written, or end the process."""
        if source is None or target is None:
            return False
        inner = _INNER.get(self.op)
        if inner is None:
            return 0 in target and 0 not in source
        source, target = source[-inner:], target[-inner:]
        if self.op == "EncodePng":
            return 0 in source
        return None not in source + target and (0 in source) != (0 in target)


@dataclass(frozen=True, slots=True)
class _Inference:
    """Shapes for one size: `harmed` names an operation that the size harms, `known` the number of sizes known.

    `is_valid`: TensorFlow's shape functions accept the size, and no output of a probe is empty.
    """

    harmed: str = ""
    known: int = 0
    is_valid: bool = False


class _Search:
    """Search for the least sizes of one signature."""

    def __init__(self, graph: "_ScratchGraph", free: list[Dimension], is_late: Callable[[], bool]) -> None:
        self._graph = graph
        self._free = free
        self._is_late = is_late
        self._inferred = dict[frozenset[tuple[Dimension, int]], _Inference]()
        # Height and width often have the same least size.
        self._last_least = 1

    def find(self, dimension: Dimension) -> list[LeastSize]:
        """Return the least sizes that a dimension has, alone and together with the same dimension of other inputs.

        Raises:
            TimeoutError: it is late.
        """
        if not self._graph.probes:
            return []
        # Other dimensions are unknown, because sizes that do not fit each other would be errors.
        found = self._find({}, dimension)
        is_decisive = self._infer({dimension: _LARGEST}).known > self._infer({}).known
        if found or (is_decisive and self._graph.has_windows_only):
            return found
        others = dict.fromkeys(self._free, _OTHERS)
        if not any(self._infer({**rest, dimension: _LARGEST}).is_valid for rest in ({}, others)):
            _log.warning("The least size of dimension %d of input %r is unknown", dimension[1], dimension[0])
        return self._find(others, dimension)

    def find_together(self, sizes: Iterable[LeastSize]) -> str:
        """Return the operation that is harmed if all dimensions have their least size, or ""."""
        least = dict.fromkeys(self._free, 1)
        for one in sizes:
            least.update(dict.fromkeys(one.dimensions, max(one.size, 1)))
        return self._infer(least).harmed

    def _find(self, others: Mapping[Dimension, int], dimension: Dimension) -> list[LeastSize]:
        largest = self._infer({**others, dimension: _LARGEST})
        together = tuple(one for one in self._free if one[1] == dimension[1])
        found = dict[tuple[Dimension, ...], LeastSize]()
        for size in range(self._least_fine(others, dimension, largest) - 1, -1, -1):
            alone = self._infer({**others, dimension: size})
            if alone.harmed:
                self._last_least = size + 1
                found[dimension,] = LeastSize((dimension,), size + 1, alone.harmed)
                break
            # An input whose size is 1 may be repeated for another input, whose size is unknown.
            if alone.known == largest.known or together in found:
                continue
            if harmed := self._infer(dict.fromkeys(together, size)).harmed:
                found[together] = LeastSize(together, size + 1, harmed)
        return list(found.values())

    def _least_fine(self, others: Mapping[Dimension, int], dimension: Dimension, largest: _Inference) -> int:
        """Return the least size from which on all is well, or 0 if that is unknown."""
        if not largest.is_valid:
            return 0
        low, high = -1, self._last_least
        if high > 1 and not self._is_fine({**others, dimension: high - 1}, largest):
            low = high - 1
        while high < _LARGEST and not self._is_fine({**others, dimension: high}, largest):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            is_fine = self._is_fine({**others, dimension: middle}, largest)
            low, high = (low, middle) if is_fine else (middle, high)
        return high

    def _is_fine(self, sizes: Mapping[Dimension, int], largest: _Inference) -> bool:
        inferred = self._infer(sizes)
        return inferred.is_valid and inferred.known >= largest.known

    def _infer(self, sizes: Mapping[Dimension, int]) -> _Inference:
        key = frozenset(sizes.items())
        if key not in self._inferred:
            if self._is_late():
                raise TimeoutError
            self._inferred[key] = self._graph.infer(sizes)
        return self._inferred[key]


class _ScratchGraph:
    """The part of a signature's graph that its fragile operations need, with inputs of any shape.

    Functions return the tensors of the probes in them, so that TensorFlow infers their shapes for the caller.
    """

    def __init__(self, meta_graph: bytes, signature: Signature) -> None:
        self._signature = signature
        self._nodes = dict[str, NodeDef]()
        self._functions = dict[str, FunctionDef]()
        for definition in read_definitions(meta_graph):
            if isinstance(definition, NodeDef):
                self._nodes[definition.name] = definition
            else:
                self._functions[definition.signature.name] = definition
        for nodes in (self._nodes.values(), *(function.node_def for function in self._functions.values())):
            _reduce(nodes)
        # Probes of functions, by the function's name.
        self._inner = dict[str, list[_Probe]]()
        fed = {spec.graph_name.removesuffix(":0"): name for name, spec in signature.inputs.items()}
        self._fed = {node: name for node, name in fed.items() if self._op(node) in _PLACEHOLDERS}
        needed = self._needed(spec.graph_name for spec in signature.outputs.values())
        self.probes = self._find(needed, ":")
        self.has_windows_only = all(probe.op in _WINDOWS for probe in self.probes)
        graph = read_head(meta_graph)
        graph.node.extend(self._needed(tensor for probe in self.probes for tensor in (probe.source, probe.target)))
        graph.library.function.extend(self._called(graph.node))
        self._fixed: bytes = graph.SerializeToString()

    def infer(self, sizes: Mapping[Dimension, int]) -> _Inference:
        """Infer the shapes for these sizes. Other free dimensions are unknown."""
        inputs = GraphDef(node=[self._placeholder(node, sizes) for node in self._fed]).SerializeToString()
        pools = set[str]()
        while True:
            try:
                with c_api.imported_graph(self._without(pools) + inputs) as imported:
                    shapes = [(imported.shape(probe.source), imported.shape(probe.target)) for probe in self.probes]
                break
            except ServingError as error:
                found = _TOO_SMALL.search(error.message)
                if found is not None and found[2] in _WINDOWS:
                    return _Inference(_describe(found[2], found[1]))
                if found is None or found[2] not in _HARMLESS or found[1] in pools:
                    _log.debug("No shapes for %s: %s", sizes, error.message)
                    return _Inference()
                # The pool's output is empty, which harms nothing. Other operations may be harmed.
                pools.add(found[1])
        harmed = [probe for probe, got in zip(self.probes, shapes, strict=True) if probe.is_harmed(*got)]
        return _Inference(
            _describe(harmed[0].op, harmed[0].name) if harmed else "",
            sum(size is not None for pair in shapes for shape in pair for size in shape or ()),
            is_valid=not (harmed or pools or any(0 in (target or ()) for _, target in shapes)),
        )

    def _without(self, pools: set[str]) -> bytes:
        """Return the serialized graph, in which these pools do nothing."""
        if not pools:
            return self._fixed
        graph = GraphDef.FromString(self._fixed)
        for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
            for node in nodes:
                if node.name in pools and node.op in _HARMLESS:
                    node.op = "Identity"
                    node.attr["T"].type = node.attr["T"].type or _FLOAT
                    for name in node.attr.keys() - {"T"}:
                        del node.attr[name]
        serialized: bytes = graph.SerializeToString()
        return serialized

    def _op(self, name: str) -> str:
        return self._nodes[name].op if name in self._nodes else ""

    def _placeholder(self, node: str, sizes: Mapping[Dimension, int]) -> NodeDef:
        made = NodeDef(name=node, op="Placeholder")
        made.attr["dtype"].CopyFrom(self._nodes[node].attr["dtype"])
        shape, known = made.attr["shape"].shape, self._signature.inputs[self._fed[node]].shape
        shape.unknown_rank = known is None
        for dimension, size in enumerate(known or ()):
            shape.dim.add(size=sizes.get((self._fed[node], dimension), -1) if size is None else size)
        return made

    def _needed(self, tensors: Iterable[str]) -> list[NodeDef]:
        """Return the nodes that compute the tensors from the inputs, without those that only run earlier."""
        pending, seen = list(tensors), dict[str, NodeDef]()
        while pending:
            name = pending.pop().partition(":")[0]
            if name in self._nodes and name not in seen and name not in self._fed:
                seen[name] = self._nodes[name]
                pending += seen[name].input
        return list(seen.values())

    def _called(self, nodes: Iterable[NodeDef]) -> list[FunctionDef]:
        pending, seen = list(nodes), dict[str, FunctionDef]()
        while pending:
            node = pending.pop()
            for name in {node.op, *(one.name for one in called_by(node))} & self._functions.keys() - seen.keys():
                seen[name] = self._functions[name]
                pending += seen[name].node_def
        return list(seen.values())

    def _find(self, nodes: Iterable[NodeDef], separator: str) -> list[_Probe]:
        """Return the probes of a graph or of a function, and extend its calls.

        `separator` is between the name of a node and the number of its output.
        """
        found = list[_Probe]()
        for node in nodes:
            if node.op in _CALLS:
                found += self._extend(node, separator)
            elif node.op in _FRAGILE and ("padding" not in node.attr or node.attr["padding"].s != b"SAME"):
                found.append(_probe(node, separator))
        return found

    def _extend(self, call: NodeDef, separator: str) -> list[_Probe]:
        """Add the tensors of the probes in the called function to the outputs of a call. Return the probes."""
        types, found = call.attr["Tout"].list.type, list[_Probe]()
        for probe in self._find_in_function(call.attr["f"].func.name):
            source, target = (f"{call.name}{separator}{len(types) + side}" for side in (0, 1))
            found.append(replace(probe, source=source, target=target))
            types.extend((probe.source_dtype, probe.target_dtype))
        return found

    def _find_in_function(self, name: str) -> list[_Probe]:
        if name not in self._inner and name in self._functions:
            function = self._functions[name]
            # A function that calls itself finds no probes in the inner call.
            self._inner[name] = []
            found = self._find(function.node_def, ":output:")
            for probe in found:
                for tensor, dtype in ((probe.source, probe.source_dtype), (probe.target, probe.target_dtype)):
                    output = f"tpuserve_{len(function.signature.output_arg)}"
                    function.signature.output_arg.add(name=output, type=dtype)
                    function.ret[output] = tensor
            self._inner[name] = found
        return self._inner.get(name, [])


def _probe(node: NodeDef, separator: str) -> _Probe:
    first = _UINT8 if node.op == "EncodePng" else _FLOAT
    types = [("T", first), ("T", first)]
    if "RFFT" in node.op:
        types = [("Treal", _FLOAT), ("Tcomplex", _COMPLEX64)]
        if node.op.startswith("I"):
            types.reverse()
    source_dtype, target_dtype = (node.attr[name].type if name in node.attr else default for name, default in types)
    # The length of an encoded image is not in its shape.
    target = node.input[0] if node.op == "EncodePng" else f"{node.name}{separator}0"
    return _Probe(node.op, node.name, node.input[0], target, source_dtype, target_dtype)


def _reduce(nodes: Iterable[NodeDef]) -> None:
    """Remove the contents of large constants, and what prevents the import of a part of a graph or of larger calls."""
    for node in nodes:
        for name in ("_class", "_disable_call_shape_inference", "_output_shapes"):
            node.attr.pop(name, None)
        data = [tensor for tensor in node.input if not tensor.startswith("^")]
        if len(data) < len(node.input):
            node.ClearField("input")
            node.input.extend(data)
        if node.op == "Const" and node.ByteSize() > _LARGE_BYTES:
            tensor = node.attr["value"].tensor
            tensor.CopyFrom(TensorProto(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape))


def _describe(op: str, name: str) -> str:
    return f"{op} '{name}'"
