"""The search for variables and tables that nothing assigns, against what a session does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tpuserve_formats.messages.official import MetaGraphDef
from tpuserve_formats.safety.graph import Body, Graph, Node, read_graphs
from tpuserve_formats.safety.unassigned import State, describe_unassigned, find_unassigned

v1 = tf.compat.v1
ROWS = np.ones((1, 3), np.float32)
SPEC = (tf.TensorSpec([None, 3], tf.float32, name="x"),)


class Reads(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """Functions that read the variable `v` in many ways, or do not need it."""

    def __init__(self) -> None:
        self.v = tf.Variable(np.ones(3, np.float32), name="v")
        self.kept = tf.Variable(np.ones(3, np.float32), name="kept")

    @tf.function  # type: ignore[untyped-decorator]  # as above
    def inner(self, x: Any) -> Any:  # noqa: ANN401 - a tensor
        return x * 2.0, x * self.v

    def plain(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return x * self.v

    def gathered(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return x * tf.gather(self.v, [0])

    def nested(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return self.inner(x)[1]

    def unused_output(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return self.inner(x)[0]

    def only_shape(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return x * tf.cast(tf.size(self.v.read_value()), tf.float32)

    def both_branches(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * self.v, lambda: x + self.v)

    def one_branch(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: x + self.v)

    def loop(self, x: Any) -> Any:  # noqa: ANN401 - as above
        return tf.while_loop(lambda step, _: step < 3, lambda step, y: (step + 1, y * self.v), [0, x])[1]

    def batched(self, x: Any) -> Any:  # noqa: ANN401 - as above
        batch = tf.nondifferentiable_batch_function(1, 1, 0, allowed_batch_sizes=[1])
        return batch(lambda part: part * self.v)(x)


READS = ["plain", "gathered", "nested", "both_branches", "loop", "batched"]
NEEDLESS = ["unused_output", "only_shape", "one_branch"]


def _find(path: Path) -> dict[str, list[str]]:
    (graph,) = read_graphs((path / "saved_model.pb").read_bytes())
    return {name: [one.name for one in states] for name, states in find_unassigned(graph).items()}


def _fails(path: Path, signature: str) -> bool:
    """Return whether a session, loaded as TensorFlow Serving does, cannot answer."""
    with v1.Session(graph=tf.Graph()) as session, session.graph.as_default():
        definition = v1.saved_model.load(session, ["serve"], str(path)).signature_def[signature]
        (fed,) = definition.inputs.values()
        fetched = [one.name for one in definition.outputs.values()]
        rows = np.array([b"a"]) if fed.dtype == tf.string.as_datatype_enum else ROWS
        try:
            session.run(fetched, {fed.name: rows})
        except tf.errors.OpError:
            return True
    return False


def _without_restore(path: Path) -> None:
    saved = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    meta_graph.graph_def.node.add(name="nothing", op="NoOp")
    meta_graph.saver_def.restore_op_name = "nothing"
    (path / "saved_model.pb").write_bytes(saved.SerializeToString())


def test_only_reads_that_happen_are_found(tmp_path: Path) -> None:
    module = Reads()
    functions = {name: tf.function(getattr(module, name), input_signature=SPEC) for name in (*READS, *NEEDLESS)}
    tf.saved_model.save(module, str(tmp_path), signatures=functions)
    assert _find(tmp_path) == {}

    _without_restore(tmp_path)

    assert _find(tmp_path) == {name: ["v"] for name in READS}
    assert {name: _fails(tmp_path, name) for name in functions} == {name: name in READS for name in functions}


def test_a_signature_that_assigns_needs_no_restore(tmp_path: Path) -> None:
    module = Reads()

    def assigning(x: Any) -> Any:  # noqa: ANN401 - a tensor
        module.v.assign([1.0, 2.0, 3.0])
        return x * module.v

    signatures = {"serve": tf.function(assigning, input_signature=SPEC)}
    tf.saved_model.save(module, str(tmp_path), signatures=signatures)

    _without_restore(tmp_path)

    assert _find(tmp_path) == {}
    assert not _fails(tmp_path, "serve")


def _reference(x: Any) -> Any:  # noqa: ANN401 - a tensor
    return x * v1.get_variable("w", [3], use_resource=False)


def _in_loop(x: Any) -> Any:  # noqa: ANN401 - a tensor
    w = v1.get_variable("w", [3], use_resource=True)
    return tf.while_loop(lambda step, _: step < 3, lambda step, y: (step + 1, y * w), [0, x])[1]


def _in_branch(x: Any) -> Any:  # noqa: ANN401 - a tensor
    w = v1.get_variable("w", [3], use_resource=True)
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: x * w.read_value())


@pytest.mark.parametrize(("model", "reads"), [(_reference, True), (_in_loop, True), (_in_branch, False)])
def test_graphs_of_tensorflow_1_are_searched_too(tmp_path: Path, model: Callable[[Any], Any], reads: bool) -> None:
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [None, 3])
            y = model(x)
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(tmp_path / "1"), {"x": x}, {"y": y})
    finally:
        v1.enable_control_flow_v2()
    assert _find(tmp_path / "1") == {}

    _without_restore(tmp_path / "1")

    assert _find(tmp_path / "1") == ({"serving_default": ["w"]} if reads else {})
    assert _fails(tmp_path / "1", "serving_default") is reads


@pytest.mark.parametrize("initialised", [True, False])
def test_a_table_needs_an_initialiser(tmp_path: Path, initialised: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([b"a"], [1]), 0, name="words")
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        signature = v1.saved_model.predict_signature_def({"x": words}, {"y": table.lookup(words)})
        main_op = v1.tables_initializer() if initialised else None
        builder.add_meta_graph_and_variables(session, ["serve"], {"serve": signature}, main_op=main_op)
        builder.save()
    assert _fails(tmp_path / "1", "serve") is not initialised
    (graph,) = read_graphs((tmp_path / "1/saved_model.pb").read_bytes())
    assert describe_unassigned(find_unassigned(graph)) == (
        "" if initialised else "signature 'serve' reads the table 'words'"
    )


# As many nodes as make a search that is not linear take longer than a test may.
MANY = 20_000
VARIABLE = Node("v", "VarHandleOp", (), variable="v")


def _graph(*nodes: Node, functions: dict[str, Body] | None = None) -> Graph:
    """Return a graph whose signature `s` fetches the last node."""
    rest = MetaGraphDef()
    rest.signature_def["s"].outputs["y"].name = f"{nodes[-1].name}:0"
    return Graph(Body(nodes={node.name: node for node in nodes}), functions or {}, rest)


def _chain(op: str, first: str, count: int) -> list[Node]:
    return [Node(f"{op}{index}", op, (f"{op}{index - 1}" if index else first,)) for index in range(count)]


def test_a_deep_graph_is_searched() -> None:
    handles = _chain("Identity", "v", MANY // 2)
    read = Node("read", "ReadVariableOp", (handles[-1].name,))
    graph = _graph(VARIABLE, *handles, read, *_chain("Neg", "read", MANY // 2))
    assert find_unassigned(graph) == {"s": (State("variable", "v"),)}


@pytest.mark.parametrize("passing", ["Identity", "Merge"])
def test_operations_that_may_assign_along_a_chain_are_searched_in_time(passing: str) -> None:
    handles = _chain(passing, "v", MANY // 2)
    users = [Node(f"user{index}", "Foo", (handle.name,)) for index, handle in enumerate(handles)]
    everything = Node("all", "AddN", tuple(user.name for user in users))
    assert find_unassigned(_graph(VARIABLE, *handles, *users, everything)) == {}


def test_functions_that_are_nested_too_deeply_are_not_searched() -> None:
    def body(index: int) -> Body:
        call = Node("call", "PartitionedCall", ("a",), functions=(f"f{index + 1}",))
        return Body(f"f{index}", ("a",), frozenset("a"), returns={"o": "call:output:0"}, nodes={"call": call})

    functions = {f"f{index}": body(index) for index in range(MANY // 10)}
    call = Node("call", "PartitionedCall", ("v",), functions=("f0",))
    assert find_unassigned(_graph(VARIABLE, call, functions=functions)) == {}


def test_an_output_that_a_function_lacks_is_not_searched() -> None:
    read = Node("read", "ReadVariableOp", ("a",))
    function = Body("f", ("a",), frozenset("a"), returns={"o": "read:value:0"}, nodes={"read": read})
    graph = _graph(VARIABLE, Node("call", "PartitionedCall", ("v",), functions=("f",)), functions={"f": function})
    assert find_unassigned(graph) == {"s": (State("variable", "v"),)}
    graph.rest.signature_def["s"].outputs["y"].name = f"call:{'9' * 5000}"
    assert find_unassigned(graph) == {}
