"""Tests for the models that ensembles consist of."""

from collections.abc import Collection

import pytest

from tests.support.ensembles import ensemble_config, make_ensemble
from tpuserve_server.core.models.configured_models import find_composing, find_released
from tpuserve_server.core.models.model_config import ModelConfig

CONFIGS = {
    config.name: config
    for config in (
        ModelConfig("a", "/a"),
        ModelConfig("b", "/b"),
        ensemble_config("inner", make_ensemble("a x=1 -> y=2", "b x=2 -> y=3")),
        ensemble_config("outer", make_ensemble("inner 1=0 -> 3=1", "b x=1 -> y=2")),
        ensemble_config("other", make_ensemble("b x=1 -> y=2")),
    )
}


@pytest.mark.parametrize(
    ("name", "models"),
    [("outer", {"inner", "a", "b"}), ("inner", {"a", "b"}), ("other", {"b"}), ("a", set()), ("unknown", set())],
)
def test_composing_models_are_those_of_all_levels(name: str, models: set[str]) -> None:
    found = find_composing(name, CONFIGS)
    assert set(found) == models
    assert len(found) == len(models)


@pytest.mark.parametrize(
    ("name", "configured", "along", "removed"),
    [
        ("outer", "a b inner outer", "a b inner", "a b inner outer"),
        # `other` and `inner` still need `b`.
        ("outer", "a b inner outer other", "a b inner", "a inner outer"),
        ("outer", "a b inner outer", "a b", "outer"),
        ("outer", "a b inner outer", "", "outer"),
        ("b", "a b inner outer", "a b inner outer", "b"),
    ],
)
def test_only_models_that_nothing_else_needs_are_released(name: str, configured: str, along: str, removed: str) -> None:
    def split(names: str) -> Collection[str]:
        return set(names.split())

    configs = {each: CONFIGS[each] for each in split(configured)}
    assert find_released(name, configs, split(along)) == split(removed)
