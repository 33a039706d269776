"""Tests that functions get no attribute from their callers that the check does not read.

TensorFlow 2.21 ran the operation of every graph in this file, or read or wrote the file, before these tests existed.
"""

import pytest
import tensorflow as tf

from tests.support.forged_graphs import ForgedModel, add_call, add_function, add_node, add_text
from tpuserve_formats.safety.screening import describe_findings, screen_saved_model


def screen(model: ForgedModel) -> str:
    return describe_findings(screen_saved_model(model.serialize()))


@pytest.mark.parametrize(
    ("operation", "attribute"),
    [
        ("PrintV2", "output_stream"),
        ("DecodeProtoV2", "descriptor_source"),
        ("EncodeProto", "descriptor_source"),
        ("FixedUnigramCandidateSampler", "vocab_file"),
        ("XlaCallModule", "module"),
        ("VarHandleOp", "shared_name"),
        ("ParseTensor", "out_type"),
        ("Const", "dtype"),
    ],
)
def test_a_placeholder_for_an_attribute_that_the_check_reads_is_refused(operation: str, attribute: str) -> None:
    model = ForgedModel()
    add_text(model.graph, "text", b"x")
    function = add_function(model.graph, "F", "x")
    add_node(function, "attack", operation, "x", **{attribute: "from_the_caller"})
    add_call(model.graph, "y", "F", "text").attr["f"].func.attr["from_the_caller"].s = b"file:///tmp/tpuserve-attack"
    assert screen(model) == f"{operation} (node attack, function F) takes attributes from its caller, " + (
        "which this check cannot read"
    )


def test_a_function_as_an_attribute_of_a_function_is_refused() -> None:
    model = ForgedModel()
    add_text(model.graph, "text", b"/tmp/tpuserve-attack")
    evil = add_function(model.graph, "Evil", "path")
    add_node(evil, "attack", "WriteFile", "path", "path")
    function = add_function(model.graph, "G", "path")
    add_node(function, "call", "StatefulPartitionedCall", "path", f="h")
    call = add_call(model.graph, "y", "G", "text")
    call.attr["f"].func.attr["h"].func.name = "Evil"
    assert screen(model).startswith("StatefulPartitionedCall (node y) hands functions to functions")
    call.attr["f"].func.attr["h"].list.func.add(name="Evil")
    assert screen(model).startswith("StatefulPartitionedCall (node y) hands functions to functions")


def test_a_function_as_the_default_of_an_attribute_is_refused() -> None:
    model = ForgedModel()
    add_text(model.graph, "text", b"/tmp/tpuserve-attack")
    add_node(add_function(model.graph, "Evil", "path"), "attack", "WriteFile", "path", "path")
    function = add_function(model.graph, "G", "path")
    function.signature.attr.add(name="h", type="func").default_value.func.name = "Evil"
    add_node(function, "call", "StatefulPartitionedCall", "path", f="h")
    add_node(model.graph, "y", "G", "text")
    assert screen(model).startswith("FunctionDef (node G) hands functions to functions")


def test_a_function_in_a_direct_call_is_followed() -> None:
    model = ForgedModel()
    add_text(model.graph, "text", b"/tmp/tpuserve-attack")
    add_node(add_function(model.graph, "Evil", "path"), "attack", "WriteFile", "path", "path")
    add_node(add_function(model.graph, "G", "path"), "call", "StatefulPartitionedCall", "path", f="h")
    add_node(model.graph, "y", "G", "text").attr["h"].func.name = "Evil"
    assert screen(model) == "WriteFile (node attack, function Evil) writes files"


def test_types_from_the_caller_pass() -> None:
    model = ForgedModel()
    add_text(model.graph, "text", b"x")
    add_node(add_function(model.graph, "F", "x"), "same", "Identity", "x", T="T")
    add_call(model.graph, "y", "F", "text").attr["f"].func.attr["T"].type = tf.string.as_datatype_enum
    assert screen(model) == ""
