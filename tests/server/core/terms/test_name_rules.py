"""Tests for names and paths in configurations."""

import pytest

from tpuserve_server.core.models.configuration_rules import check_list
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import MAX_NAME_CHARACTERS, MAX_PATH_CHARACTERS, check_name, check_path
from tpuserve_server.core.terms.types import ModelSpec

FORBIDDEN = ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029"]


@pytest.mark.parametrize(
    "name", ["m", "model-1_a.b", "größe", "模型", "a b", "a\u200db", "x" * MAX_NAME_CHARACTERS, ""]
)
def test_names_of_any_language_are_accepted(name: str) -> None:
    check_name("Model name", name)


@pytest.mark.parametrize("character", FORBIDDEN)
def test_a_control_character_is_refused_and_shown_escaped(character: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"U\+{ord(character):04X} at position 1. Remove it$") as caught:
        check_name("Model name", f"m{character}n")
    assert caught.value.message.isprintable()


def test_long_names_and_paths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"has 257 characters\. The limit is 256"):
        check_name("Model name", "x" * 257)
    with pytest.raises(InvalidArgument, match="The limit is 4096") as caught:
        check_path("base_path", "/" * (MAX_PATH_CHARACTERS + 1))
    assert len(caught.value.message) < 200


def step(model: str = "m", label: str | None = None, tensor: str = "x") -> Ensemble:
    spec = ModelSpec(model, version_label=label)
    return Ensemble((EnsembleStep(1, spec, ((tensor, "x"),), (("y", "y"),)),), (), ("y",))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (ModelConfig("a\nb", "/m"), "Model name"),
        (ModelConfig("a", "/m\0"), "Model a: base_path"),
        (ModelConfig("a", "/m", "tensor\nflow"), "Model a: model_platform"),
        (ModelConfig("a", "/m", version_labels={"x\x7f": 1}), "Model a: version label"),
        (ModelConfig("a", "/m", logging=LoggingConfig("", "/l\n", 1)), "Model a: filename_prefix"),
        (ModelConfig("a", "/m", logging=LoggingConfig("js\nonl", "/l", 1)), "Model a: type of log_collector_config"),
        (ModelConfig("a", "", "ensemble", ensemble=step(model="m\n")), "Ensemble a: name"),
        (ModelConfig("a", "", "ensemble", ensemble=step(label="l\n")), "Ensemble a: name"),
        (ModelConfig("a", "", "ensemble", ensemble=step(tensor="t\n")), "Ensemble a: name"),
    ],
)
def test_every_text_of_a_configuration_is_checked(config: ModelConfig, what: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{what} .*control character"):
        check_list([config])
