"""Made-up tf.Examples with the features that a graph's ParseExample operations read."""

from typing import TYPE_CHECKING

import numpy as np

_SEED = 20
# Lengths of the sequences, row by row.
_LENGTHS = (8, 3, 5, 1)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tensorflow.core.example.feature_pb2 import Feature
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto


def make_examples(graph: "GraphDef", count: int, longest: int) -> list[bytes]:
    """Make serialized tf.Examples with every dense feature of the graph and different values in each.

    Without dense features, the Examples are empty. Sparse features are optional, so the Examples omit them. Sequences
    have one length within an Example, and different lengths across Examples.
    """
    from tensorflow.core.example.example_pb2 import Example

    wanted = [
        found
        for nodes in (graph.node, *(function.node_def for function in graph.library.function))
        for found in _dense_features(nodes)
    ]
    examples = [Example() for _ in range(count)]
    random = np.random.default_rng(_SEED)
    for index, example in enumerate(examples):
        length = min(longest, _LENGTHS[index % len(_LENGTHS)])
        for name, dtype, shape in wanted:
            example.features.feature[name].CopyFrom(_make_feature(random, dtype, shape, length))
    return [bytes(example.SerializeToString()) for example in examples]


def _dense_features(nodes: "Iterable[NodeDef]") -> "Iterator[tuple[str, int, TensorShapeProto]]":
    """Yield the dense features that one graph or function parses. Its constants hold their names."""
    constants = {node.name: node for node in nodes if node.op == "Const"}
    for node in nodes:
        if node.op in ("ParseExample", "ParseExampleV2"):
            names = _dense_names(node, constants)
            yield from zip(names, node.attr["Tdense"].list.type, node.attr["dense_shapes"].list.shape, strict=False)


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

    constant = constants.get(name.split(":")[0])
    if constant is None:
        return []
    return [value.decode() for value in np.atleast_1d(tf.make_ndarray(constant.attr["value"].tensor))]


def _make_feature(random: np.random.Generator, dtype: int, shape: "TensorShapeProto", length: int) -> "Feature":
    """Make a feature of floats from 0 to 1, of integers 0 and 1, or of strings.

    An integer sequence starts with 1, because it may be a mask.
    """
    import tensorflow as tf
    from tensorflow.core.example.feature_pb2 import Feature

    dims = [dim.size for dim in shape.dim]
    size = int(np.prod([length if dim < 0 else dim for dim in dims], dtype=np.int64))
    feature = Feature()
    if dtype == tf.float32.as_datatype_enum:
        feature.float_list.value.extend(random.random(size, np.float32))
    elif dtype == tf.int64.as_datatype_enum:
        drawn = random.integers(0, 2, size)
        if -1 in dims:
            drawn[:1] = 1
        feature.int64_list.value.extend(drawn)
    else:
        feature.bytes_list.value.extend(b"tpuserve %d" % number for number in random.integers(0, 1000, size))
    return feature
