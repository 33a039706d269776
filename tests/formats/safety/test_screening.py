"""Tests that real SavedModels pass the screening, and that no way around it is open."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.support.example_models import save_example_model
from tests.support.saved_models import save_function, save_half_plus_two, save_mlp
from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_formats.safety.screening import (
    BadAsset,
    describe_findings,
    screen_graphs,
    screen_nodes,
    screen_saved_model,
)

TEXT = tf.TensorSpec([], tf.string, "text")
Function = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]


def screen(path: Path) -> str:
    return describe_findings(screen_graphs(read_graphs(file_of(path)), ["serve"]))


def file_of(path: Path) -> bytes:
    return (path / "saved_model.pb").read_bytes()


def change(path: Path, edit: Callable[[MetaGraphDef], object]) -> Path:
    """Change the graph of a SavedModel, as an attacker does."""
    model = SavedModel.FromString(file_of(path))
    edit(model.meta_graphs[0])
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    return path


class WithVocabulary(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """A model with a table from a file, which is an asset."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        (folder / "vocabulary.txt").write_text("a\nb\n")
        file = tf.saved_model.Asset(str(folder / "vocabulary.txt"))
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        initializer = tf.lookup.TextFileInitializer(file, tf.string, line, tf.int64, number)
        self.table = tf.lookup.StaticHashTable(initializer, -1)

    @tf.function(input_signature=[TEXT])  # type: ignore[untyped-decorator]  # as above
    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"index": self.table.lookup(text)}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    module = WithVocabulary(tmp_path)
    tf.saved_model.save(module, str(tmp_path / "table"), signatures={"serving_default": module.serve})
    return tmp_path / "table"


@pytest.fixture
def table_of_tensorflow_1(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("a\nb\n")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        text = tf.compat.v1.placeholder(tf.string, [], "text")
        file = tf.constant(str(tmp_path / "words.txt"))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS, file)
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(file, tf.string, line, tf.int64, number), -1)
        index = table.lookup(text)
        session.run(tf.compat.v1.tables_initializer())
        builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "one"))
        signature = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def({"text": text}, {"index": index})
        assets = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, assets, main_op=tf.compat.v1.tables_initializer()
        )
        builder.save()
    return tmp_path / "one"


@pytest.mark.parametrize("save", [save_mlp, save_half_plus_two, save_example_model])
def test_savers_and_computations_pass(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    assert screen(save(tmp_path / "1")) == ""
    assert screen_saved_model(file_of(tmp_path / "1")) == []


def test_tables_that_read_assets_pass(table: Path, table_of_tensorflow_1: Path) -> None:
    assert screen(table) == screen(table_of_tensorflow_1) == ""
    assert screen_saved_model(file_of(table)) == screen_saved_model(file_of(table_of_tensorflow_1)) == []


def read(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.io.read_file(text)}


def write(text: tf.Tensor) -> dict[str, tf.Tensor]:
    with tf.control_dependencies([tf.io.write_file("/tmp/tpuserve-attack", text)]):
        return {"y": tf.identity(text)}


def print_to_file(text: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.print(text, output_stream="file:///tmp/tpuserve-attack")
    return {"y": text}


def read_in_a_branch(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.cond(tf.equal(text, "x"), lambda: tf.io.read_file("/etc/passwd"), lambda: text)}


def read_in_a_loop(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.while_loop(lambda y: tf.equal(y, ""), lambda y: (tf.io.read_file("/etc/passwd"),), (text,))[0]}


def read_in_a_dataset(text: tf.Tensor) -> dict[str, tf.Tensor]:
    rows = tf.data.Dataset.from_tensors(text).map(tf.io.read_file)
    return {"y": rows.reduce("", lambda before, row: before + row)}


def read_lines(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.data.TextLineDataset("/etc/passwd").reduce(text, lambda before, row: before + row)}


def keep_in_a_file(text: tf.Tensor) -> dict[str, tf.Tensor]:
    rows = tf.data.Dataset.from_tensors(text).cache("/tmp/tpuserve-attack")
    return {"y": rows.reduce("", lambda before, row: before + row)}


def run_python(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.numpy_function(lambda y: y, [text], tf.string)}


def decode_with_a_file(text: tf.Tensor) -> dict[str, tf.Tensor]:
    _, values = tf.io.decode_proto(text, "T", ["a"], [tf.string], descriptor_source="/etc/passwd")
    return {"y": values[0]}


def sample_from_a_file(text: tf.Tensor) -> dict[str, tf.Tensor]:
    found = tf.random.fixed_unigram_candidate_sampler([[0]], 1, 1, True, 2, vocab_file="/etc/passwd")
    return {"y": text, "sampled": found[0]}


def read_a_checkpoint(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.raw_ops.RestoreV2(prefix=text, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.string])[0]}


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (read, "ReadFile (node ReadFile, function "),
        (write, "WriteFile (node "),
        (print_to_file, "PrintV2 (node PrintV2, function "),
        (read_in_a_branch, "ReadFile (node cond/ReadFile, function "),
        (read_in_a_loop, "ReadFile (node while/ReadFile, function "),
        (read_in_a_dataset, "ReadFile (node "),
        (read_lines, "TextLineDataset (node "),
        (keep_in_a_file, "CacheDataset"),
        (run_python, "PyFunc (node "),
        (decode_with_a_file, "DecodeProtoV2 (node "),
        (sample_from_a_file, "FixedUnigramCandidateSampler (node "),
        (read_a_checkpoint, "RestoreV2 (node "),
    ],
)
def test_attacks_are_found_and_named(tmp_path: Path, function: Function, found: str) -> None:
    assert screen(save_function(tmp_path / "1", function, TEXT)).startswith(found)


def test_a_cache_in_memory_and_a_print_to_the_log_pass(tmp_path: Path) -> None:
    def harmless(text: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.print(text)
        return {"y": tf.data.Dataset.from_tensors(text).cache().reduce("", lambda before, row: before + row)}

    assert screen(save_function(tmp_path / "1", harmless, TEXT)) == ""


def add_write(meta_graph: MetaGraphDef) -> str:
    """Add a node that writes a file, and return its name."""
    graph = meta_graph.graph_def
    for name, text in (("attack_path", b"/tmp/tpuserve-attack"), ("attack_text", b"x")):
        value = graph.node.add(name=name, op="Const")
        value.attr["dtype"].type = 7
        value.attr["value"].tensor.dtype = 7
        value.attr["value"].tensor.tensor_shape.SetInParent()
        value.attr["value"].tensor.string_val.append(text)
    graph.node.add(name="attack", op="WriteFile", input=["attack_path", "attack_text"])
    return "attack"


def in_the_restoration(meta_graph: MetaGraphDef) -> None:
    meta_graph.saver_def.restore_op_name = add_write(meta_graph)


def in_the_initialisation(meta_graph: MetaGraphDef) -> None:
    meta_graph.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = add_write(meta_graph)


def in_the_initialisation_of_tensorflow_1(meta_graph: MetaGraphDef) -> None:
    del meta_graph.signature_def["__saved_model_init_op"]
    meta_graph.collection_def["legacy_init_op"].node_list.value.append(add_write(meta_graph))


def before_a_fed_tensor(meta_graph: MetaGraphDef) -> None:
    name = add_write(meta_graph)
    fed = meta_graph.signature_def["serving_default"].inputs["x"].name.partition(":")[0]
    for node in meta_graph.graph_def.node:
        if any(one.partition(":")[0] == fed for one in node.input):
            node.input.append(f"^{name}")
            return


def under_the_name_of_a_function(meta_graph: MetaGraphDef) -> None:
    function = meta_graph.graph_def.library.function.add()
    function.signature.name = "Relu"
    function.node_def.add(name="attack", op="WriteFile")


def as_a_replacement_of_a_function(meta_graph: MetaGraphDef) -> None:
    library = meta_graph.graph_def.library
    for function in library.function:
        if "signature_wrapper" in function.signature.name:
            function.attr["api_implements"].s = b"same"
    function = library.function.add()
    function.signature.name = "other"
    function.attr["api_implements"].s = b"same"
    function.node_def.add(name="attack", op="WriteFile")


@pytest.mark.parametrize(
    "edit",
    [
        in_the_restoration,
        in_the_initialisation,
        in_the_initialisation_of_tensorflow_1,
        before_a_fed_tensor,
        under_the_name_of_a_function,
        as_a_replacement_of_a_function,
    ],
)
def test_hidden_places_are_searched(tmp_path: Path, edit: Callable[[MetaGraphDef], None]) -> None:
    assert screen(change(save_mlp(tmp_path / "1"), edit)).startswith("WriteFile (node attack")


def test_an_operation_of_a_library_is_unknown(tmp_path: Path) -> None:
    def edit(meta_graph: MetaGraphDef) -> None:
        for function in meta_graph.graph_def.library.function:
            if "signature_wrapper" in function.signature.name:
                function.node_def.add(name="new\nline" * 50, op="Custom>Op")

    described = screen(change(save_mlp(tmp_path / "1"), edit))
    assert described.startswith("Custom>Op (node new?linenew?line")
    assert described.endswith(" is unknown to this check")
    assert len(described) < 300


def test_functions_behind_unusual_bytes_are_found(tmp_path: Path) -> None:
    """A parser accepts numbers of fields with needless bytes, which a search for the usual bytes would miss."""
    path = save_function(tmp_path / "1", read_in_a_branch, TEXT)
    usual, unusual = b"\x52", b"\xd2\x00"
    model = SavedModel.FromString(file_of(path))
    graph = model.meta_graphs[0].graph_def
    [node] = [node for node in graph.node if "signature_wrapper" in node.attr["f"].func.name]
    attribute = node.attr["f"].SerializeToString()
    assert attribute.startswith(usual)
    entry = b"\x0a\x01f\x12" + bytes([len(attribute) + 1]) + unusual + attribute[1:]
    del node.attr["f"]
    serialized = node.SerializeToString() + b"\x2a" + varint(len(entry)) + entry
    graph.node.remove(node)
    library = graph.library.SerializeToString()
    graph.ClearField("library")
    forged = graph.SerializeToString() + b"\x0a" + varint(len(serialized)) + serialized
    forged += b"\x12" + varint(len(library)) + library
    model.meta_graphs[0].ClearField("graph_def")
    meta_graph = model.meta_graphs[0].SerializeToString() + b"\x12" + varint(len(forged)) + forged
    found = screen_graphs(read_graphs(b"\x08\x01\x12" + varint(len(meta_graph)) + meta_graph), ["serve"])
    assert {one.operation for one in found} == {"ReadFile"}


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def test_an_asset_outside_the_version_is_refused(table: Path) -> None:
    def edit(meta_graph: MetaGraphDef) -> None:
        meta_graph.asset_file_def[0].filename = "../../../../etc/passwd"

    with pytest.raises(BadAsset, match=r"its asset '\.\./\.\./\.\./\.\./etc/passwd' is outside"):
        screen(change(table, edit))


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../../b", "a\0b"])
def test_other_names_outside_the_version_are_refused(table: Path, name: str) -> None:
    def edit(meta_graph: MetaGraphDef) -> None:
        meta_graph.asset_file_def[0].filename = name

    with pytest.raises(BadAsset):
        screen(change(table, edit))


def join_the_name(meta_graph: MetaGraphDef) -> None:
    """Extend the name of the asset: assets/vocabulary.txt + /../../../etc/passwd."""
    _edit_path(meta_graph, "StringJoin")


def replace_the_name(meta_graph: MetaGraphDef) -> None:
    """Assign another name to the variable with the name of the asset."""
    graph = meta_graph.graph_def
    [variable] = [node.name for node in graph.node if node.op == "VarHandleOp"]
    add_write(meta_graph)
    graph.node.add(name="again", op="AssignVariableOp", input=[variable, "attack_path"])


def alias_the_variable(meta_graph: MetaGraphDef) -> None:
    graph = meta_graph.graph_def
    [variable] = [node for node in graph.node if node.op == "VarHandleOp"]
    alias = graph.node.add()
    alias.CopyFrom(variable)
    alias.name = "alias"
    alias.attr["shared_name"].s = variable.attr["shared_name"].s or variable.name.encode()
    add_write(meta_graph)
    graph.node.add(name="again", op="AssignVariableOp", input=["alias", "attack_path"])


def _edit_path(meta_graph: MetaGraphDef, op: str) -> None:
    for function in meta_graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == "InitializeTableFromTextFileV2":
                added = function.node_def.add(name="joined", op=op, input=[node.input[1]])
                node.input[1] = f"{added.name}:output:0"
                return


@pytest.mark.parametrize("edit", [join_the_name, replace_the_name, alias_the_variable])
def test_a_changed_name_of_an_asset_is_refused(table: Path, edit: Callable[[MetaGraphDef], None]) -> None:
    assert screen(change(table, edit)).startswith("InitializeTableFromTextFileV2 (node ")


def test_reading_a_file_counts_even_where_no_output_needs_it(tmp_path: Path) -> None:
    def edit(meta_graph: MetaGraphDef) -> None:
        add_write(meta_graph)
        meta_graph.graph_def.node.add(name="lost", op="ReadFile", input=["attack_path"])

    assert screen(change(save_mlp(tmp_path / "1"), edit)) == "ReadFile (node lost) reads files"


class Resource(tf.Module):  # type: ignore[misc]  # as above
    """A model whose method writes a file. Only tf.saved_model.load could call it."""

    @tf.function(input_signature=[])  # type: ignore[untyped-decorator]  # as above
    def _initialize(self) -> tf.Tensor:
        tf.io.write_file("/tmp/tpuserve-attack", "x")
        return tf.constant(1)

    @tf.function(input_signature=[TEXT])  # type: ignore[untyped-decorator]  # as above
    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": text}


def test_functions_that_python_runs_while_it_loads_are_searched_for_the_exporter(tmp_path: Path) -> None:
    module = Resource()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    assert screen(tmp_path / "1") == ""
    assert [one.operation for one in screen_saved_model(file_of(tmp_path / "1"))] == ["WriteFile"]


def test_only_the_graph_with_the_tags_counts_for_a_server(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", read, TEXT)
    assert screen_graphs(read_graphs(file_of(path)), ["train"]) == []


def test_graphs_without_signatures_are_searched_as_a_whole(tmp_path: Path) -> None:
    graph = SavedModel.FromString(file_of(save_function(tmp_path / "1", read, TEXT))).meta_graphs[0].graph_def
    assert "ReadFile" in {one.operation for one in screen_nodes(graph.SerializeToString())}


@pytest.mark.parametrize("content", [b"\x12\xff", b"\x12\x03\x12\xff\xff"])
def test_damaged_bytes_are_refused(content: bytes) -> None:
    with pytest.raises((FormatError, DecodeError)):
        screen_saved_model(content)
