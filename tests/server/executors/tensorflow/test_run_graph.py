"""Tests that the server finds state and randomness in the graphs of real SavedModels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from tests.support.example_models import save_example_model
from tests.support.saved_models import as_text, save_function, save_half_plus_two, save_mlp
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions, executor
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.meta_graph import parse_signatures
from tpuserve_server.executors.tensorflow.run_graph import RunGraph, check_operations, find_unrepeatable

X = tf.TensorSpec([None, 2], tf.float32, "x")


def judge(path: Path) -> str:
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    # GraphDef's obsolete version, which old TensorFlow wrote.
    saved.meta_graphs[0].graph_def.version = 24
    meta_graph = saved.meta_graphs[0].SerializeToString()
    return find_unrepeatable(RunGraph.of(meta_graph), parse_signatures(meta_graph).values(), op_def_registry.get)


@pytest.mark.parametrize("save", [save_mlp, save_half_plus_two, save_example_model])
def test_models_with_variables_and_a_saver_are_repeatable(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    assert judge(save(tmp_path / "1")) == ""


def look_up(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": TABLE.lookup(tf.as_string(x))}


def loop(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (y + 1,), (x,))[0]}


def map_rows(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.map_fn(lambda row: tf.cond(row[0] > 0, lambda: row, lambda: -row), x)}


def check(x: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.debugging.assert_non_negative(x)
    return {"y": x}


def seeded(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.random.stateless_uniform([2], seed=(1, 2))}


TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["1"], ["one"]), "")


@pytest.mark.parametrize("function", [look_up, loop, map_rows, check, seeded])
def test_tables_control_flow_and_fixed_seeds_are_repeatable(
    tmp_path: Path, function: Callable[[tf.Tensor], dict[str, tf.Tensor]]
) -> None:
    module = tf.Module()
    module.table = TABLE
    module.serve = tf.function(function, input_signature=[X])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    assert judge(tmp_path / "1") == ""


def noise(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.random.normal([2])}


def deep_noise(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.while_loop(lambda y: True, lambda y: (y + tf.random.uniform([2]),), (x,), maximum_iterations=2)[0]}


def drop(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.nn.dropout(x, 0.5)}


def clock(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.cast(tf.timestamp(), tf.float32)}


def read(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x, "file": tf.io.read_file("/etc/hostname")}


def python(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.numpy_function(lambda y: y, [x], tf.float32, stateful=False)}


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (noise, "RandomStandardNormal"),
        (deep_noise, "RandomUniform"),
        (drop, "RandomUniform"),
        (clock, "Timestamp"),
        (read, "ReadFile"),
        (python, "PyFuncStateless"),
    ],
)
def test_random_numbers_and_the_outside_world_are_named(
    tmp_path: Path, function: Callable[[tf.Tensor], dict[str, tf.Tensor]], operation: str
) -> None:
    reason = judge(save_function(tmp_path / "1", function, X))
    assert reason == f"signature 'serving_default' has the operation {operation}, which has state or is random"


def test_a_signature_that_writes_spoils_the_one_that_reads(tmp_path: Path) -> None:
    module = tf.Module()
    module.count = tf.Variable(0.0)
    module.look = tf.function(lambda x: {"y": x + module.count}, input_signature=[X])

    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": module.count.assign_add(1.0)}

    module.add = tf.function(count, input_signature=[X])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"look": module.look})
    assert judge(tmp_path / "1") == ""
    tf.saved_model.save(module, str(tmp_path / "2"), signatures={"look": module.look, "count": module.add})
    assert judge(tmp_path / "2") == (
        "signature 'count' has the operation AssignAddVariableOp, which has state or is random"
    )


def test_writes_to_old_variables_are_found(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        count = tf.compat.v1.get_variable("count", initializer=0.0, use_resource=False)
        with tf.control_dependencies([tf.compat.v1.assign_add(count, 1.0)]):
            y = tf.identity(x)
        session.run(tf.compat.v1.global_variables_initializer())
        signature = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})
        builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "1"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    assert "AssignAdd, which has state" in judge(tmp_path / "1")


def test_an_unknown_operation_is_no_proof(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    meta_graph = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0]
    signatures = parse_signatures(meta_graph.SerializeToString())
    assert find_unrepeatable(
        RunGraph.of(meta_graph.SerializeToString()), signatures.values(), lambda op: None
    ).endswith("which this server's TensorFlow does not define")


def test_a_damaged_graph_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="damaged"):
        RunGraph.of(b"\x12\x05ab")


def load(path: Path, *allowed: str) -> Servable:
    return TensorFlowExecutor(TensorFlowOptions(allowed_ops=allowed)).load(ServableId("m", 1), VersionFiles(path))


def print_to(text: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.print("x", output_stream="file:///written")
    return {"y": text}


def read_screened(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.io.read_file(text)}


def test_only_an_allowed_operation_loads_and_is_shown(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", read_screened, tf.TensorSpec([], tf.string, "text"))
    for allowed in ((), ("WriteFile",)):
        with pytest.raises(FailedPrecondition, match=r"^this server refuses .*: ReadFile \(node ReadFile, function "):
            load(path, *allowed)
    servable = load(path, "WriteFile", "ReadFile")
    assert servable.device.endswith(", with ReadFile by --allowed_ops)")
    servable.close()


def test_an_allowed_operation_that_a_model_does_not_need_is_not_shown(tmp_path: Path) -> None:
    servable = load(save_half_plus_two(tmp_path / "1"), "ReadFile")
    assert "allowed_ops" not in servable.device
    servable.close()


def test_a_graph_in_pieces_is_refused_next_to_a_whole_one(tmp_path: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    (path / "saved_model.cpb").write_bytes(b"pieces")
    with pytest.raises(InvalidArgument, match=r"this server cannot check saved_model\.cpb"):
        load(path)


def test_a_text_that_pythons_parser_reads_in_another_way_is_checked_as_tensorflow_reads_it(tmp_path: Path) -> None:
    path = as_text(save_function(tmp_path / "1", print_to, tf.TensorSpec([], tf.string, "text")))
    text = path / "saved_model.pbtxt"
    # An escape in C++, and four characters in Python.
    forged = text.read_text().replace('"file:///written"', r'"\X66ile:///written"')
    assert text.write_text(forged) > len(r"\X66ile")
    with pytest.raises(FailedPrecondition, match=r"PrintV2 \(node PrintV2, function .*\) prints to a file"):
        load(path)


def test_a_graph_that_changes_after_the_check_is_loaded_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_half_plus_two(tmp_path / "1")
    unsafe = save_function(tmp_path / "2", read_screened, tf.TensorSpec([], tf.string, "text"))

    def check_and_swap(*arguments: Any) -> tuple[str, ...]:  # noqa: ANN401 - those of check_operations
        found = check_operations(*arguments)
        with (path / "saved_model.pb").open("r+b") as file:  # In place, which a descriptor would see.
            file.write((unsafe / "saved_model.pb").read_bytes())
        (path / "saved_model.pb").unlink()
        (unsafe / "saved_model.pb").rename(path / "saved_model.pb")
        return found

    monkeypatch.setattr(executor, "check_operations", check_and_swap)
    servable = load(path)
    assert servable.dispatch("serving_default", {"x": np.array([[2]], np.float32)}, ("y",)).result()["y"].tolist() == [
        [3]
    ]
    servable.close()
