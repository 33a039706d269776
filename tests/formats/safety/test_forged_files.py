"""Tests that names of files that only look like the version's own, or like none, are refused.

TensorFlow 2.21 read or wrote the file of every refused graph in this file, before these tests existed.
"""

import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef

from tests.support.forged_graphs import ForgedModel, add_call, add_function, add_node, add_text
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_formats.safety.operations import CACHES, EVALUATED_ANYWHERE, EVALUATED_WITH_FILES, FILE_INPUTS
from tpuserve_formats.safety.screening import describe_findings, screen_graphs, screen_nodes
from tpuserve_formats.varint import varint

PATH = b"/tmp/tpuserve-attack"


def screen(model: ForgedModel) -> str:
    return describe_findings(screen_graphs(read_graphs(model.serialize()), ["serve"]))


def reading(path: str) -> ForgedModel:
    """Return a model that reads a file while it is initialised."""
    model = ForgedModel(init="read")
    add_text(model.graph, "y", b"")
    add_node(model.graph, "read", "ReadFile", path)
    return model


def test_a_text_in_the_other_form_of_a_constant_is_not_empty() -> None:
    model = reading("path")
    tensor = add_text(model.graph, "path", b"").attr["value"].tensor
    assert screen(model) == ""
    tensor.tensor_content = bytes([len(PATH)]) + PATH
    assert screen(model) == "ReadFile (node read) reads files"


def reading_a_variable(shared_name: bytes) -> ForgedModel:
    """Return a model that reads its asset, whose path is in the variable A, as TensorFlow 2 keeps it."""
    model = reading("path")
    model.asset = "asset:0"
    add_text(model.graph, "asset", b"")
    add_node(model.graph, "A", "VarHandleOp", dtype=tf.string, shared_name=shared_name)
    add_node(model.graph, "assign", "AssignVariableOp", "A", "asset", dtype=tf.string)
    add_node(model.graph, "path", "ReadVariableOp", "A", "^assign", dtype=tf.string)
    return model


def test_a_variable_with_a_name_keeps_the_path_of_an_asset() -> None:
    assert screen(reading_a_variable(b"A")) == ""


def test_a_variable_without_a_name_may_be_any_other() -> None:
    model = reading_a_variable(b"")
    add_text(model.graph, "secret", PATH)
    add_node(model.graph, "B", "VarHandleOp", dtype=tf.string, shared_name=b"")
    add_node(model.graph, "again", "AssignVariableOp", "B", "secret", dtype=tf.string)
    assert screen(model) == "ReadFile (node read) reads files"


@pytest.mark.parametrize("kind", [tf.resource, tf.variant])
@pytest.mark.parametrize(
    ("operation", "attribute"),
    [
        ("Const", "dtype"),
        ("DeserializeManySparse", "dtype"),
        ("DeserializeSparse", "dtype"),
        ("ParseTensor", "out_type"),
        ("RestoreSlice", "dt"),
    ],
)
def test_a_handle_from_bytes_is_refused(operation: str, attribute: str, kind: tf.DType) -> None:
    model = ForgedModel(init="again")
    add_text(model.graph, "y", b"")
    add_node(model.graph, "forged", operation, "y", **{attribute: kind})
    add_node(model.graph, "again", "AssignVariableOp", "forged", "y", dtype=tf.string)
    assert f"{operation} (node forged) makes handles of resources from bytes" in screen(model)


def test_a_handle_from_the_checkpoint_is_refused() -> None:
    model = ForgedModel(output="forged:0")
    add_text(model.graph, "path", b"")
    forged = add_node(model.graph, "forged", "RestoreV2", "path")
    forged.attr["dtypes"].list.type.append(tf.resource.as_datatype_enum)
    assert screen(model) == "RestoreV2 (node forged) makes handles of resources from bytes"


def test_a_large_tensor_does_not_hide_a_type() -> None:
    """The check omits the large tensors of a node. The type after this one replaces it."""
    tensor = tf.make_tensor_proto(b"x" * 2**17, tf.string).SerializeToString()
    value = b"\x42" + varint(len(tensor)) + tensor + b"\x30\x14"
    entry = b"\x0a\x05dtype\x12" + varint(len(value)) + value
    node = b"\x0a\x06forged\x12\x05Const\x2a" + varint(len(entry)) + entry
    graph = b"\x0a" + varint(len(node)) + node
    found = describe_findings(screen_nodes(graph))
    assert found == "Const (node forged) makes handles of resources from bytes"


def calling(argument: str) -> tuple[ForgedModel, FunctionDef]:
    """Return a model that calls a function with two empty texts and a path. The function reads the file `b`."""
    model = ForgedModel(output="y:0")
    add_text(model.graph, "empty", b"")
    add_text(model.graph, "path", PATH)
    add_call(model.graph, "y", "F", "empty", "empty", "path")
    function = add_function(model.graph, "F", argument, "b")
    add_node(function, "lines", "TextLineDataset", "b")
    return model, function


@pytest.mark.parametrize("attribute", ["number_attr", "type_list_attr"])
def test_an_argument_that_takes_several_tensors_moves_the_others(attribute: str) -> None:
    model, function = calling("a")
    assert screen(model) == ""
    setattr(function.signature.input_arg[0], attribute, "N")
    assert screen(model) == "TextLineDataset (node lines, function F) reads files"


def test_an_output_of_several_tensors_moves_the_others() -> None:
    """Inputs of a node in a function may be lists: `split:output` is both of its tensors."""
    model, function = calling("a")
    inner = add_function(model.graph, "G", "a", "b")
    add_node(inner, "lines", "TextLineDataset", "b")
    del function.node_def[:]
    add_text(function, "empty", b"")
    call = add_call(function, "call", "G", "split:output:0", "empty:output:0", "split:output:1")
    assert screen(model) == ""
    call.input[:] = ["split:output", "empty:output:0"]
    assert screen(model) == "TextLineDataset (node lines, function G) reads files"


def test_a_node_with_the_name_of_an_argument_is_ambiguous() -> None:
    model, function = calling("*a")
    add_text(function, "a", b"")
    function.node_def[0].input[:] = ["a:0"]
    assert screen(model) == "TextLineDataset (node lines, function F) reads files"
    function.node_def[0].input[:] = ["a:output:0"]
    assert screen(model) == "TextLineDataset (node lines, function F) reads files"


@pytest.mark.parametrize("operation", sorted(EVALUATED_ANYWHERE))
def test_operations_that_the_import_may_evaluate_are_refused_where_no_output_needs_them(operation: str) -> None:
    model = ForgedModel()
    add_text(model.graph, "y", b"")
    add_node(model.graph, "lost", operation, "y")
    assert screen(model).startswith(f"{operation} (node lost) ")


@pytest.mark.parametrize("operation", sorted(EVALUATED_WITH_FILES))
def test_files_in_attributes_are_refused_where_no_output_needs_them(operation: str) -> None:
    model = ForgedModel()
    add_text(model.graph, "y", b"")
    lost = add_node(model.graph, "lost", operation, "y", descriptor_source=b"local://")
    assert screen(model) == ""
    lost.attr["descriptor_source"].s = PATH
    assert screen(model) == f"{operation} (node lost) reads files"


@pytest.mark.parametrize("operation", sorted(FILE_INPUTS))
def test_only_operations_that_write_nothing_may_have_the_path_of_an_asset(operation: str) -> None:
    model = ForgedModel(init="use", asset="asset:0")
    add_text(model.graph, "y", b"")
    add_text(model.graph, "asset", b"")
    use = add_node(model.graph, "use", operation, *["asset"] * (FILE_INPUTS[operation] + 1))
    refused = f"{operation} (node use) reads files" if operation in CACHES else ""
    assert screen(model) == refused
    add_text(model.graph, "empty", b"")
    use.input[FILE_INPUTS[operation]] = "empty"
    assert screen(model) == ""


def loading_a_forest(pattern: bytes = b"7f_done", rewrite: bytes = b"", prefix: bytes = b"7f_") -> ForgedModel:
    """Return a model that loads a decision forest from the directory of its asset, as its library's exports do."""
    model = ForgedModel(init="load", asset="path:0", asset_file="7f_done")
    add_text(model.graph, "y", b"")
    add_node(model.graph, "path", "Placeholder", dtype=tf.string)
    add_node(model.graph, "handle", "SimpleMLCreateModelResource")
    add_node(model.graph, "folder", "StaticRegexReplace", "path", pattern=pattern, rewrite=rewrite)
    add_node(model.graph, "load", "SimpleMLLoadModelFromPathWithHandle", "handle", "folder", file_prefix=prefix)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (loading_a_forest(), ""),
        (loading_a_forest(prefix=b"../../other/"), "SimpleMLLoadModelFromPathWithHandle (node load) reads files"),
        (loading_a_forest(pattern=b".*"), "SimpleMLLoadModelFromPathWithHandle (node load) reads files"),
        (loading_a_forest(pattern=b"done"), "SimpleMLLoadModelFromPathWithHandle (node load) reads files"),
        (loading_a_forest(rewrite=b"../"), "SimpleMLLoadModelFromPathWithHandle (node load) reads files"),
    ],
)
def test_a_decision_forest_reads_only_the_directory_of_the_assets(model: ForgedModel, expected: str) -> None:
    assert screen(model) == expected


def test_the_directory_of_the_assets_is_for_decision_forests_alone() -> None:
    model = loading_a_forest()
    add_node(model.graph, "read", "ReadFile", "folder")
    model.init = "read"
    assert screen(model) == "ReadFile (node read) reads files"


def test_a_decision_forest_reads_no_directory_of_an_asset_in_a_directory() -> None:
    model = loading_a_forest()
    model.asset_file = "x.7f_done./7f_done"
    assert screen(model) == "SimpleMLLoadModelFromPathWithHandle (node load) reads files"
