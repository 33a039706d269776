"""Tests that the names of a tree's leaves are unique and reversible."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames, flatten, name_of_variable, variable_name

# TensorFlow's own pattern for the names of operations (python/framework/ops.py).
_VALID = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")
KEYS = st.text(st.sampled_from("ab/%~ .>0é"), max_size=4)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        pytest.param([("mlp/~/linear_0", "w")], ["mlp/~/linear_0/w"], id="Haiku"),
        pytest.param([("0", "layer.1", "ü")], ["0/layer.1/ü"], id="integers, dots and letters"),
        pytest.param([("a/b",), ("a", "b"), ("a%2Fb",)], ["a%2Fb", "a/b", "a%252Fb"], id="names that would be one"),
        pytest.param([("__metadata__",)], ["%5F_metadata__"], id="what safetensors keeps for itself"),
        pytest.param([()], ["params"], id="a single array"),
    ],
)
def test_a_leaf_has_the_name_of_its_keys(paths: list[KeyPath], names: list[str]) -> None:
    named = TreeNames(paths)
    assert [named.name(path) for path in paths] == names
    assert [named.path(name) for name in names] == paths


@given(st.sets(st.lists(KEYS, min_size=1, max_size=3).map(tuple), max_size=5))
def test_names_of_one_tree_are_distinct_and_lead_back(paths: set[KeyPath]) -> None:
    named = TreeNames(paths)
    assert {named.path(named.name(path)) for path in paths} == paths


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
def test_every_name_is_that_of_a_variable_and_back(name: str) -> None:
    assert _VALID.match(variable_name(name))
    assert name_of_variable(variable_name(name)) == name


@pytest.mark.parametrize("name", ["dense/kernel", "layer_1/.ATTRIBUTES/x", "a>7", ".hidden", "_x"])
def test_names_of_other_variables_stay(name: str) -> None:
    assert name_of_variable(name) == name


def test_keys_that_jax_cannot_sort_are_an_export_error() -> None:
    with pytest.raises(BuilderFailed, match=r"JAX cannot flatten the tree of parameters: .*sorting"):
        flatten({"w": 1, 1: 2})
