"""Tests for the rules of ensembles in a list of models."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.ensembles import ensemble_config, make_ensemble
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.models.configuration_rules import (
    check_ensembles,
    describe_version_as_base,
    describe_without_version,
)
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import InvalidArgument

MODELS = [ModelConfig(name, f"/{name}", version_labels={"stable": 3}) for name in "abc"]
MODELS.append(ModelConfig("old", "/old", version_policy=VersionPolicy.specific([7])))


def refusal(*configs: ModelConfig) -> str:
    with pytest.raises(InvalidArgument) as caught:
        check_ensembles([*MODELS, *configs])
    return caught.value.message


def refusal_of(ensemble: Ensemble) -> str:
    return refusal(ensemble_config("e", ensemble)).removeprefix("Ensemble e: ")


def test_pipelines_of_configured_models_are_accepted() -> None:
    check_ensembles(
        [
            ensemble_config("outer", make_ensemble("inner x=image -> y=scores", "a:stable x=scores -> y=label")),
            *MODELS,
            ensemble_config("inner", make_ensemble("a:7 x=x -> y=t", "b x=t -> y=y", inputs="x", outputs="t y")),
            ensemble_config("wide", make_ensemble("a x=1 -> y=2", "a x=1 -> y=3", "c x=2 w=3 -> y=4")),
        ]
    )


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "ensemble_scheduling has no step"),
        (["_ x=1 -> y=2"], "step 1 has no model_name"),
        (["a x=1 -> y=2", "nosuch x=2 -> y=3"], "step 2 (nosuch): the configuration has no model nosuch"),
        (["a:canary x=1 -> y=2"], "step 1 (a): model a has no version label canary"),
        (["old:1 x=1 -> y=2"], "step 1 (old): the version policy of model old does not choose version 1"),
        (["a -> y=2"], "step 1 (a) has no input_map"),
        (["a x=1 ->"], "step 1 (a) has no output_map"),
        (["a x= -> y=2"], "step 1 (a) has an input_map without key or value"),
        (["a x=1 -> =2"], "step 1 (a) has an output_map without key or value"),
        (["a x=1 x=2 -> y=3"], "step 1 (a): input_map has the key x more than once"),
        (["a x=1 -> y=2 y=3"], "step 1 (a): output_map has the key y more than once"),
        (["a x=1 -> y=2 z=2"], "step 1 (a): two outputs produce tensor 2"),
        (["a x=1 -> y=2", "b x=1 -> y=2"], "step 1 (a) and step 2 (b) both produce tensor 2"),
        (
            ["a x=1 w=3 -> y=2", "b x=2 -> y=3"],
            "its steps form a cycle: step 1 (a) -> step 2 (b) -> step 1 (a)",
        ),
    ],
)
def test_a_step_that_breaks_a_rule_is_refused_by_name(steps: list[str], message: str) -> None:
    assert refusal_of(make_ensemble(*steps)) == message


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ("1 1", "", "input 1 is declared more than once"),
        ("", "3 3", "output 3 is declared more than once"),
        ("1 2", "", "input 2 is also produced by a step"),
        ("1 5", "", "no step takes input 5"),
        ("w", "", "step 1 (a) takes tensor 1, which no step produces and which is no declared input"),
        ("", "1", "no step produces output 1. The steps produce 2, 3"),
        ("", "nosuch", "no step produces output nosuch. The steps produce 2, 3"),
        ("", "2", "tensor 3 of step 2 (b) is not connected: no step takes it, and it is no declared output"),
    ],
)
def test_tensors_that_are_not_connected_are_refused_by_name(inputs: str, outputs: str, message: str) -> None:
    assert refusal_of(make_ensemble("a x=1 -> y=2", "b x=2 w=w -> y=3", inputs=inputs, outputs=outputs)) == message


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("base_path", {"base_path": "/e"}),
        ("model_version_policy", {"version_policy": VersionPolicy.all()}),
        ("version_labels", {"version_labels": {"stable": 1}}),
        ("batching_parameters", {"batching": BatchingParameters()}),
        ("response_cache", {"response_cache_max_bytes": 0}),
    ],
)
def test_settings_of_models_with_files_are_refused(field: str, config: dict[str, object]) -> None:
    ensemble = ensemble_config("e", make_ensemble("a x=1 -> y=2"))
    message = refusal(replace(ensemble, **config))  # type: ignore[arg-type]  # fields by name
    assert message == f"Ensemble e: an ensemble cannot have {field}. Set it on the models of the steps"


def test_platform_and_steps_belong_together() -> None:
    steps = make_ensemble("a x=1 -> y=2")
    assert refusal(ModelConfig("e", "", "ensemble")) == 'Model e has platform "ensemble", but no ensemble_scheduling'
    assert refusal(ModelConfig("e", "/e", ensemble=steps)) == 'Ensemble e: set model_platform: "ensemble"'


def test_both_version_and_label_are_refused() -> None:
    ensemble = make_ensemble("a:stable x=1 -> y=2")
    [step] = ensemble.steps
    both = replace(ensemble, steps=(replace(step, model=replace(step.model, version=3)),))
    assert refusal_of(both) == "step 1 (a) has both model_version and version_label. Set only one of them"


def test_ensembles_that_contain_each_other_are_refused() -> None:
    first, second = (ensemble_config(name, make_ensemble(f"{other} x=1 -> y=2")) for name, other in ("ef", "fe"))
    assert refusal(first, second) in (
        "Ensembles contain each other: e -> f -> e",
        "Ensembles contain each other: f -> e -> f",
    )
    itself = ensemble_config("e", make_ensemble("e x=1 -> y=2"))
    assert refusal(itself) == "Ensembles contain each other: e -> e"


def nested(levels: int, *steps: str) -> list[ModelConfig]:
    """Return ensembles of which each runs `steps` on the next. The last runs them on model `a`."""
    names = [*(f"e{level}" for level in range(levels)), "a"]
    return [
        ensemble_config(name, make_ensemble(*(step.format(model=inner) for step in steps)))
        for name, inner in pairwise(names)
    ]


def test_ensembles_that_multiply_or_nest_without_end_are_refused() -> None:
    twice = ("{model} x=1 -> y=2", "{model} x=1 -> y=3")
    check_ensembles([*MODELS, *nested(8, *twice)])
    assert refusal(*nested(40, *twice)) == (
        "Ensemble e31: it has 512 steps, with those of the ensembles within it. The limit is 256"
    )
    once = "{model} x=1 -> y=2"
    check_ensembles([*MODELS, *nested(16, once)])
    assert refusal(*nested(1000, once)) == (
        "Ensemble e983: it has 17 levels of ensembles within each other. The limit is 16"
    )


@pytest.mark.parametrize("base_path", ["/models/digits/7", "/models/digits/7/", "gs://models/digits/007"])
def test_a_version_as_base_path_names_the_folder_above_it(base_path: str) -> None:
    parent = base_path.rstrip("/").rpartition("/")[0]
    described = describe_version_as_base(base_path, "saved_model.pb")
    assert f"base path {base_path} is itself version " in described
    assert described.endswith(f'--model_base_path={parent}, or base_path: "{parent}" in a model configuration')


def test_a_model_in_a_folder_without_a_number_is_to_get_one() -> None:
    described = describe_version_as_base("/models/digits", "saved_model.pb")
    assert "Move its files into a directory whose name is a whole number, such as /models/digits/1" in described


def test_a_base_path_without_a_version_is_described() -> None:
    assert describe_without_version("m", exists=False, file="") == "base path m does not exist or is not a directory"
    assert describe_without_version("m", exists=True, file="") == "base path m contains no version directory such as 1/"
    as_base = describe_version_as_base("m/1", "saved_model.pb")
    assert describe_without_version("m/1", exists=True, file="saved_model.pb") == as_base


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy.latest(), [9]),
        (VersionPolicy.latest(0), [9]),
        (VersionPolicy.latest(2), [9, 3]),
        (VersionPolicy.latest(99), [9, 3, 1, -4]),
        (VersionPolicy.all(), [9, 3, 1, -4]),
        (VersionPolicy.specific([3, 7, -4]), [3, -4]),
        (VersionPolicy.specific([]), []),
    ],
)
def test_policy_chooses_highest_first(policy: VersionPolicy, chosen: list[int]) -> None:
    assert policy.choose([3, 9, -4, 1]) == chosen


def test_policy_names_versions_that_are_absent() -> None:
    assert VersionPolicy.specific([7, 3, 5]).absent([3]) == [5, 7]
    assert VersionPolicy.latest(3).absent([]) == []


def test_equal_configs_are_equal_whatever_the_order_of_versions() -> None:
    def config(*versions: int) -> ModelConfig:
        return ModelConfig("m", "/m", version_policy=VersionPolicy.specific(versions), version_labels={"stable": 1})

    assert config(1, 2) == config(2, 1)
    assert config(1) != config(2)
