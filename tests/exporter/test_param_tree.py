"""Tests for the leaves of a tree: parameters, scalars, fixed leaves, and leaves that cannot be served."""

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.param_tree import read_tree

pytestmark = pytest.mark.usefixtures("tensorflow")

W = np.arange(6, dtype=np.float32).reshape(3, 2)
Pair = collections.namedtuple("Pair", "w b")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    """A class like Equinox's, with a static field and an activation function among the leaves."""

    w: Any
    activation: Callable[..., Any]
    name: str = dataclasses.field(default="head", metadata={"static": True})


@dataclasses.dataclass
class Unregistered:
    w: Any


def test_arrays_are_parameters_and_the_tree_comes_back() -> None:
    tree = {"mlp/~/linear_0": {"w": W}, "pair": Pair(W, None), "list": [W, (W,)], "head": Registered(W, jax.nn.relu)}
    structure, arrays = read_tree(tree, live=True)
    assert sorted(arrays) == ["head/w", "list/0", "list/1/0", "mlp/~/linear_0/w", "pair/w"]
    rebuilt = structure.rebuild({name: value + 1 for name, value in arrays.items()})
    assert (rebuilt["head"].activation, rebuilt["head"].name, rebuilt["pair"].b) == (jax.nn.relu, "head", None)
    np.testing.assert_array_equal(rebuilt["mlp/~/linear_0"]["w"], W + 1)


@pytest.mark.parametrize("number", [3, 0.5, True, 2j])
def test_a_number_of_python_stays_one(number: complex) -> None:
    """Keep it a number: an array would promote bfloat16 and could not be the size of another array."""
    structure, arrays = read_tree({"n": number, "w": W}, live=True)
    assert set(arrays) == {"w"}
    assert structure.rebuild(arrays)["n"] is number
    assert structure.with_scalars({"n": 7}).rebuild(arrays)["n"] == 7


def test_random_keys_are_kept_as_their_data() -> None:
    key = jax.random.key(3)
    structure, arrays = read_tree({"rng": key}, live=True)
    assert arrays["rng"].dtype == np.uint32
    assert structure.rebuild(arrays)["rng"] == key


def test_a_shape_of_another_library_is_a_parameter() -> None:
    """Accept Orbax' metadata of a checkpoint instead of the parameters."""
    leaf = types.SimpleNamespace(shape=[3, 2], dtype=np.dtype(np.float32), sharding=None)
    assert read_tree({"w": leaf}, live=False)[0].shapes == {"w": jax.ShapeDtypeStruct((3, 2), np.float32)}
    with pytest.raises(BuilderFailed, match=r"params\['w'\] is a shape without a value"):
        read_tree({"w": leaf}, live=True)


@pytest.mark.parametrize("leaf", ["relu", np.array(["a", "b"]), np.array([None], object), jnp.tanh, np.float32])
def test_what_holds_no_numbers_is_given_back_as_it_is(leaf: Any) -> None:  # noqa: ANN401 - any leaf
    structure, arrays = read_tree([leaf], live=True)
    assert not arrays
    assert structure.rebuild({})[0] is leaf


def _deleted() -> jax.Array:
    array = jnp.ones(3)
    array.delete()
    return array


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        pytest.param(_deleted, r"params\['a/~'\]\[0\] is deleted, which happens to an argument donated", id="donated"),
        pytest.param(lambda: jax.ShapeDtypeStruct((2,), "float32"), r"params\['a/~'\]\[0\] is a shape", id="a shape"),
        pytest.param(
            lambda: Unregistered([W]), r"params\['a/~'\]\[0\] is a Unregistered with arrays \(w\)", id="class"
        ),
    ],
)
def test_a_leaf_that_cannot_be_served_is_named_as_jax_prints_it(leaf: Callable[[], Any], message: str) -> None:
    with pytest.raises(BuilderFailed, match=message):
        read_tree({"a/~": [leaf()]}, live=True)


def test_a_tracer_is_named() -> None:
    with pytest.raises(BuilderFailed, match=r"params\.w is a tracer, float32\[3,2\]. Export outside of jax.jit"):
        jax.jit(lambda w: read_tree(Pair(w, None), live=True))(W)


def test_two_leaves_of_one_path_are_named() -> None:
    class Twice:
        pass

    keyed = (jax.tree_util.DictKey("w"), W)
    jax.tree_util.register_pytree_with_keys(Twice, lambda _: ((keyed, keyed), None), lambda *_: Twice())
    with pytest.raises(BuilderFailed, match=r"several leaves of the tree have the same path: \['w'\] and \['w'\]"):
        read_tree(Twice(), live=True)
