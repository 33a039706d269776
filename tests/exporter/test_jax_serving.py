"""Tests for JAX functions in TensorFlow: their precision, and whether they run where they are served."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from tpuserve_exporter.errors import BuilderFailed, CannotLower
from tpuserve_exporter.models.jax_function import JaxFunction, JaxInput, JaxReference
from tpuserve_exporter.models.jax_serving import ServedJax, Variables, serve_jax
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.terms.signature import Signature

pytestmark = [pytest.mark.xdist_group("exporter"), pytest.mark.usefixtures("tensorflow")]

KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)
X = {"x": JaxInput("float32", ("batch", 3))}


def _multiply(params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
    return {"y": inputs["x"] @ params["kernel"]}


def _multiply_in_bfloat16(params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - as above
    x, kernel = inputs["x"].astype("bfloat16"), params["kernel"].astype("bfloat16")
    return {"y": (x @ kernel).astype("float32")}


def _serve(function: JaxFunction, batch_sizes: tuple[int, ...]) -> ServedJax:
    return serve_jax(function, Variables.of(function.params), batch_sizes)


def test_the_program_is_for_cpu_and_tpu_in_a_version_that_older_servers_read() -> None:
    served = _serve(JaxFunction(_multiply, {"kernel": KERNEL}, X), (1, 2)).function
    graph = served.trace()[1].graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    (program,) = [node for node in nodes if node.op == "XlaCallModule"]
    assert list(program.attr["platforms"].list.s) == [b"CPU", b"TPU"]
    assert program.attr["version"].i == 9


def test_operations_that_tensorflow_cannot_read_are_written_as_calls() -> None:
    import tensorflow as tf

    def call(params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        values, places = jax.lax.top_k(inputs["x"], 2)
        return {"values": values, "places": places}

    _, graph = _serve(JaxFunction(call, {}, X), (1, 2)).function.trace()
    for rows in (1, 5):
        x = np.random.default_rng(rows).random((rows, 3), np.float32)
        answers = graph(x=tf.constant(x))
        for name, value in call({}, {"x": x}).items():
            np.testing.assert_array_equal(answers[name], value)


@pytest.mark.parametrize(("call", "dtype"), [(_multiply, "float32"), (_multiply_in_bfloat16, "mixed_bfloat16")])
def test_what_it_computes_in_is_told(call: Any, dtype: str) -> None:  # noqa: ANN401 - a function of jax
    assert _serve(JaxFunction(call, {"kernel": KERNEL}, X), (1,)).compute_dtype == dtype


def test_parameters_are_in_memory_once() -> None:
    variables = Variables.of({"kernel": KERNEL})
    (variable,) = variables.module.variables
    assert variable.name == "kernel:0"
    there = np.asarray(memoryview(variable.read_value())).ctypes.data
    array = variables.arrays()["kernel"]
    assert array.unsafe_buffer_pointer() == there
    np.testing.assert_array_equal(array, KERNEL)


def test_values_are_let_go_of_as_they_become_variables() -> None:
    held = {"a": np.ones(3, np.float32), "b": np.zeros((2, 1), np.float32)}
    left = list[int]()

    def values() -> Iterator[tuple[str, np.ndarray]]:
        for name in sorted(held):
            yield name, held.pop(name)
            left.append(len(held))

    variables = Variables(values())
    assert left == [1, 0]
    assert [variable.name for variable in variables.module.variables] == ["a:0", "b:0"]
    np.testing.assert_array_equal(variables.arrays()["a"], np.ones(3))


def test_released_parameters_are_nowhere_in_memory() -> None:
    import tensorflow as tf

    def held() -> list[Any]:
        return [array for array in jax.live_arrays() if array.shape == kernel.shape]

    kernel = np.ones((3, 1237), np.float32)
    variables = Variables.of({"kernel": kernel})
    function = JaxFunction(_multiply, variables.arrays(), X)
    function_served = serve_jax(function, variables, (1,)).function
    reference = JaxReference(function)
    source = OpenedSource("orbax", "kernel", function_served, reference)
    del function
    answer = reference.run(Signature("device", {}, {}), {"x": np.ones((2, 3), np.float32)})["y"]
    assert held()
    source.release()
    assert not held()
    assert tf.size(function_served.trackables[0].variables[0].read_value()) == 0
    np.testing.assert_array_equal(answer, np.full((2, 1237), 3, np.float32))


@pytest.mark.parametrize(
    ("goes", "decide"),
    [
        (True, lambda x: x * 2 if x.shape[0] % 2 else x),
        (True, lambda x: x * 2 if x.shape[0] == 4 else x),
        (True, lambda x: jax.jit(lambda x: x * 2 if x.shape[0] % 2 == 0 else x)(x)),
        (False, lambda x: x * 2 / x.shape[0]),
        (False, lambda x: x - x.mean(axis=0)),
    ],
    ids=["odd", "four", "in a function of its own", "their number as a value", "their mean"],
)
def test_code_that_goes_by_the_number_of_rows_gets_a_program_for_each(goes: bool, decide: Any) -> None:  # noqa: ANN401
    import tensorflow as tf

    def call(params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        return {"y": decide(inputs["x"])}

    served = _serve(JaxFunction(call, {}, X), (1, 2, 4))
    assert ["the model's code depends on the number" in note for note in served.notes] == [True] * goes
    _, graph = served.function.trace()
    for count in (1, 2, 4):
        rows = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
        np.testing.assert_allclose(graph(x=tf.constant(rows))["y"], decide(rows), rtol=1e-6)


@pytest.mark.parametrize(
    ("goes", "decide"),
    [
        (True, lambda ids: ids * 2 if ids.shape[1] % 2 == 0 else ids),
        (True, lambda ids: ids * 2 if ids.shape[1] % 16 == 0 else ids),
        (False, lambda ids: ids * 2 / ids.shape[1]),
        (False, lambda ids: ids[:, ::-1] - ids[:, :1]),
    ],
    ids=["even", "multiples of 16", "its value", "slices"],
)
def test_code_that_goes_by_the_length_gets_a_warning(goes: bool, decide: Any) -> None:  # noqa: ANN401
    inputs = {"ids": JaxInput("float32", ("n", "length"))}
    function = JaxFunction(lambda params, given: {"y": decide(given["ids"])}, {}, inputs)
    served = _serve(function, (1,))
    assert ["depends on length, and the version may take one way" in note for note in served.notes] == [True] * goes


def test_dimensions_of_one_name_are_of_one_size() -> None:
    import tensorflow as tf

    inputs = {"ids": JaxInput("int64", ("n", "length")), "mask": JaxInput("float32", ("n", "length"))}
    function = JaxFunction(lambda params, given: {"y": (given["ids"] * given["mask"]).sum(axis=1)}, {}, inputs)
    served = _serve(function, (1,))
    assert not served.notes
    _, graph = served.function.trace()
    ids, mask = tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64), tf.constant([[1.0, 1, 0], [1, 0, 0]])
    assert graph(ids=ids, mask=mask)["y"].numpy().tolist() == [3, 4]


def test_a_function_that_fails_is_told_with_its_inputs() -> None:
    function = JaxFunction(_multiply, {"kernel": KERNEL.T}, X)
    with pytest.raises(BuilderFailed, match=r"the model fails for x: float32\[4, 3\]: TypeError: dot_general requires"):
        _serve(function, (4,))


def test_linear_algebra_that_tensorflow_lacks_is_refused_by_name() -> None:
    def call(params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        return {"y": jax.numpy.linalg.inv(inputs["x"] + params["shift"])}

    function = JaxFunction(call, {"shift": np.eye(3, dtype=np.float32)}, {"x": JaxInput("float32", ("batch", 3, 3))})
    with pytest.raises(CannotLower, match=r"calls LAPACK \(sgetrf, strsm\).*Compute what no input changes"):
        _serve(function, (1, 2))
