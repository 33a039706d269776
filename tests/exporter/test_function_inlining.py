"""Tests that inlined graphs compute the same as graphs with calls."""

from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.graphs.function_inlining import inline_calls, inline_to_analyse

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.usefixtures("tensorflow")]


def test_calls_within_calls_compute_the_same_inline() -> None:
    """Inline a function whose nodes have names that exist in the graph."""
    import tensorflow as tf

    v1 = tf.compat.v1
    double = tf.function(lambda x: tf.identity(x * 2.0, "named"), autograph=False)
    both = tf.function(lambda x: tuple(tf.split(double(x) + double(x + 1.0), 2, axis=1)), autograph=False)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        first, second = both(x)
        y = tf.identity(first - second, "y")
        tf.identity(x, "PartitionedCall/named")
    flat, [name, inner] = inline_calls(graph.as_graph_def(), [y.name, second.name])
    assert not [node for node in flat.node if "PartitionedCall" in node.op]
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = tf.graph_util.import_graph_def(
            flat, name="", return_elements=[one if ":" in one else f"{one}:0" for one in (name, inner)]
        )
        found, half = session.run(tensors, {"x:0": rows})
    expected = (rows * 4 + 2)[:, :2] - (rows * 4 + 2)[:, 2:]
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(half, (rows * 4 + 2)[:, 2:])


def test_branches_and_loops_become_nodes_that_shapes_can_be_told_of() -> None:
    import tensorflow as tf

    def step(index: Any, x: Any) -> tuple[Any, Any]:  # noqa: ANN401 - tensors
        return index + 1, tf.cond(tf.reduce_any(x > 1.0), lambda: x * 2.0, lambda: x + 1.0)

    function = tf.function(lambda x: tf.while_loop(lambda index, _: index < 3, step, (0, x))[1], autograph=False)
    graph_def = function.get_concrete_function(tf.TensorSpec([5, 4], tf.float32, name="x")).graph.as_graph_def()
    flat, [name] = inline_to_analyse(graph_def, ["Identity:0"])
    assert not {"While", "StatelessWhile", "If", "StatelessIf"} & {node.op for node in flat.node}
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(flat, name="")
    assert graph.get_tensor_by_name(f"{name}:0").shape.as_list() == [5, 4]


def test_a_function_that_calls_itself_ends_at_its_own_call() -> None:
    """Inline a function that calls itself twice in one branch, so that each level would double the graph."""
    import tensorflow as tf

    stub = tf.function(lambda n: tf.identity(n), autograph=False)
    fibonacci = tf.function(
        lambda n: tf.cond(n < 2, lambda: tf.identity(n), lambda: stub(n - 1) + stub(n - 2)), autograph=False
    )
    outer = tf.function(lambda n: tf.identity(fibonacci(n), "y"), autograph=False)
    graph_def = outer.get_concrete_function(tf.TensorSpec([], tf.int32, name="n")).graph.as_graph_def()
    itself = next(node.attr["f"].func.name for node in graph_def.node if "PartitionedCall" in node.op)
    for node in (node for function in graph_def.library.function for node in function.node_def):
        if "PartitionedCall" in node.op:
            node.attr["f"].func.name = itself
    flat, _ = inline_to_analyse(graph_def, ["y:0"])
    assert [node.op for node in flat.node if "PartitionedCall" in node.op] == ["PartitionedCall"] * 2
