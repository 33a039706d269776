"""Graphs that an attacker writes by hand, node by node, as a serialized SavedModel."""

from dataclasses import dataclass, field

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

STRING = 7


def add_node(graph: "GraphDef | FunctionDef", name: str, op: str, *inputs: str, **attributes: object) -> NodeDef:
    """Add a node. An attribute of type str is a placeholder for an attribute of the function's caller."""
    nodes = graph.node if isinstance(graph, GraphDef) else graph.node_def
    node = nodes.add(name=name, op=op, input=inputs)
    for key, value in attributes.items():
        if isinstance(value, bytes):
            node.attr[key].s = value
        elif isinstance(value, int):
            node.attr[key].i = value
        elif isinstance(value, str):
            node.attr[key].placeholder = value
        elif isinstance(value, tf.DType):
            node.attr[key].type = value.as_datatype_enum
        else:
            raise TypeError(f"no attribute has the type of {value!r}")
    return node


def add_text(graph: "GraphDef | FunctionDef", name: str, text: bytes) -> NodeDef:
    """Add a constant."""
    node = add_node(graph, name, "Const", dtype=tf.string)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(text, tf.string))
    return node


def add_call(graph: "GraphDef | FunctionDef", name: str, function: str, *inputs: str) -> NodeDef:
    node = add_node(graph, name, "StatefulPartitionedCall", *inputs)
    node.attr["f"].func.name = function
    return node


def add_function(graph: GraphDef, name: str, *arguments: str) -> FunctionDef:
    """Add a function whose arguments are texts. One that begins with `*` is a list of texts."""
    function = graph.library.function.add()
    function.signature.name = name
    for argument in arguments:
        added = function.signature.input_arg.add(name=argument.removeprefix("*"), type=STRING)
        if argument.startswith("*"):
            added.number_attr = "N"
    return function


@dataclass(slots=True)
class ForgedModel:
    """A SavedModel whose signature has the output `output`. The loader runs `init` and feeds the asset `asset`."""

    graph: GraphDef = field(default_factory=GraphDef)
    output: str = "y:0"
    init: str = ""
    asset: str = ""
    asset_file: str = "words.txt"

    def serialize(self) -> bytes:
        model = SavedModel(saved_model_schema_version=1)
        meta_graph = model.meta_graphs.add()
        meta_graph.meta_info_def.tags.append("serve")
        meta_graph.graph_def.CopyFrom(self.graph)
        meta_graph.signature_def["serving_default"].outputs["y"].name = self.output
        if self.init:
            meta_graph.collection_def["saved_model_main_op"].node_list.value.append(self.init)
        if self.asset:
            meta_graph.asset_file_def.add(filename=self.asset_file).tensor_info.name = self.asset
        serialized: bytes = model.SerializeToString()
        return serialized
