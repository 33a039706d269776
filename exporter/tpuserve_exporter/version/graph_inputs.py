"""Knowledge of a SavedModel's inputs from its graph, tables and warm-up requests, to make samples of them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.graphs.lookups import PARSERS, Lookup, Lookups, find_lookups
from tpuserve_exporter.signatures.leading import LeadingArithmetic, walk_module
from tpuserve_exporter.signatures.preparation import GraphWalk
from tpuserve_exporter.terms.domain import Domain
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.table_keys import read_keys
from tpuserve_exporter.version.warmup_records import read_requests

if TYPE_CHECKING:
    from tensorflow.core.example.feature_pb2 import Feature
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

_BYTES = 255.0


class GraphInputs:
    """The inputs of one SavedModel in `path`. `read` returns its graph, which this object reads when it needs it."""

    def __init__(self, path: Path, read: "Callable[[], MetaGraphDef]") -> None:
        self._path = path
        self._read = read
        self._lookups: dict[str, Lookups] = {}
        self._domains: dict[str, dict[str, Domain]] = {}

    def lookups(self, signature: Signature) -> Lookups:
        """Return the lookups of a signature in tables and vocabularies."""
        self._analyse(signature)
        return self._lookups[signature.name]

    def domains(self, signature: Signature) -> dict[str, Domain]:
        """Return what the graph shows about the values of each input, by name."""
        self._analyse(signature)
        found = self._domains[signature.name]
        by_node = {name: node_of(spec.graph_name) for name, spec in signature.inputs.items()}
        return {name: found[node] for name, node in by_node.items() if node in found}

    def make_examples(self, signature: Signature, count: int, longest: int) -> list[bytes]:
        """Make different tf.Examples that the graph's parsers accept, with sequences of at most `longest` values."""
        self._analyse(signature)
        return _make_examples(self._lookups[signature.name].flat, self._domains[signature.name], count, longest)

    def recorded(self, signature: Signature) -> list[Tensors]:
        """Return the inputs of the SavedModel's own warm-up requests, or nothing if they cannot be read."""
        with contextlib.suppress(SamplesUnfit):
            return [
                inputs for one, inputs in read_requests(self._path, {signature.name: signature}) if one == signature
            ]
        return []

    def _analyse(self, signature: Signature) -> None:
        if signature.name in self._lookups:
            return
        meta_graph = self._read()
        outputs = [spec.graph_name for spec in signature.outputs.values()]
        inputs = [spec.graph_name for spec in signature.inputs.values()]
        lookups = find_lookups(meta_graph.graph_def, outputs, inputs)
        keys = read_keys(meta_graph, self._path, [one.table for one in lookups.found if not one.rows])
        domains = _domains(lookups.found, keys)
        for spec in signature.inputs.values():
            if spec.dtype.startswith("float") and _takes_bytes(lookups.flat, node_of(spec.graph_name)):
                domains[node_of(spec.graph_name)] = Domain(top=_BYTES)
        self._lookups[signature.name], self._domains[signature.name] = lookups, domains


def _domains(lookups: Iterable[Lookup], keys: Mapping[str, tuple[Any, ...]]) -> dict[str, Domain]:
    """Return the domain of each source of row numbers and keys."""
    found: dict[str, Domain] = {}
    for one in lookups:
        for source, columns in one.sources.items():
            known = found.get(source, Domain())
            limits = (*known.limits, (columns, one.rows)) if one.rows else known.limits
            known_keys = known.keys or (() if one.rows else keys.get(one.table, ()))
            found[source] = Domain(limits, known_keys, known.splits or one.splits)
    return found


def _takes_bytes(graph: "GraphDef", placeholder: str) -> bool:
    """Return whether the graph begins by normalizing floats of 0 to 255."""
    return LeadingArithmetic(tuple(GraphWalk(graph, {}, walk_module).run(placeholder))).is_for_bytes


_SEED = 20
# Lengths of the sequences, row by row.
_LENGTHS = (8, 3, 5, 1)


def _make_examples(graph: "GraphDef", domains: Mapping[str, Domain], count: int, longest: int) -> list[bytes]:
    """Make serialized tf.Examples with every dense feature of the graph and different values in each.

    Without dense features, the Examples are empty. Sparse features are optional, so the Examples omit them. Sequences
    have one length within an Example, and different lengths across Examples.
    """
    from tensorflow.core.example.example_pb2 import Example

    wanted = list(_dense_features(graph.node))
    examples = [Example() for _ in range(count)]
    random = np.random.default_rng(_SEED)
    for index, example in enumerate(examples):
        length = min(longest, _LENGTHS[index % len(_LENGTHS)])
        for name, dtype, shape, source in wanted:
            feature = _make_feature(random, dtype, shape, length, domains.get(source, Domain()))
            example.features.feature[name].CopyFrom(feature)
    return [bytes(example.SerializeToString()) for example in examples]


def _dense_features(nodes: "Iterable[NodeDef]") -> "Iterator[tuple[str, int, TensorShapeProto, str]]":
    """Yield the dense features that a graph parses, each with its tensor. The graph's constants hold their names."""
    constants = {node.name: node for node in nodes if node.op == "Const"}
    for node in nodes:
        if node.op in PARSERS:
            names = _dense_names(node, constants)
            first = 3 * (node.attr["num_sparse"].i or node.attr["Nsparse"].i)
            tensors = [f"{node.name}:{number}" if number else node.name for number in range(first, first + len(names))]
            shapes = node.attr["dense_shapes"].list.shape
            yield from zip(names, node.attr["Tdense"].list.type, shapes, tensors, strict=False)


def _dense_names(node: "NodeDef", constants: "Mapping[str, NodeDef]") -> list[str]:
    """Return the names of the dense features, from inputs in the order of core/ops/parsing_ops.cc.

    V2 has one vector of names, and V1 has an input for each name.
    """
    if node.op == "ParseExampleV2":
        return _strings(constants, node.input[3])
    first = 2 + node.attr["Nsparse"].i
    return [name for one in node.input[first : first + node.attr["Ndense"].i] for name in _strings(constants, one)]


def _strings(constants: "Mapping[str, NodeDef]", name: str) -> list[str]:
    import tensorflow as tf

    constant = constants.get(node_of(name))
    if constant is None:
        return []
    return [value.decode() for value in np.atleast_1d(tf.make_ndarray(constant.attr["value"].tensor))]


def _make_feature(
    random: np.random.Generator, dtype: int, shape: "TensorShapeProto", length: int, domain: Domain
) -> "Feature":
    """Make a feature of values from its domain.

    An integer sequence starts with 1, because it may be a mask.
    """
    import tensorflow as tf
    from tensorflow.core.example.feature_pb2 import Feature

    dims = [dim.size for dim in shape.dim]
    size = int(np.prod([length if dim < 0 else dim for dim in dims], dtype=np.int64))
    feature = Feature()
    if dtype == tf.float32.as_datatype_enum:
        feature.float_list.value.extend(domain.top * random.random(size, np.float32))
    elif dtype == tf.int64.as_datatype_enum:
        drawn = domain.draw_integers(random, (1, size))[0] if domain.knows_integers else random.integers(0, 2, size)
        if -1 in dims and not domain.knows_integers:
            drawn[:1] = 1
        feature.int64_list.value.extend(drawn)
    elif domain.keys:
        feature.bytes_list.value.extend(domain.draw_strings(random, (size,)))
    else:
        feature.bytes_list.value.extend(b"tpuserve %d" % number for number in random.integers(0, 1000, size))
    return feature
