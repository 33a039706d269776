"""Tests that the export detects the source in a directory and requests a path or kind if there are several."""

from pathlib import Path

import pytest

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.kinds import detect

ONE = {
    "an Orbax item": ("orbax", ["_METADATA"]),
    "an Orbax step": ("orbax", ["_CHECKPOINT_METADATA", "default/_METADATA"]),
    "items of Orbax": ("orbax", ["encoder/_METADATA", "decoder/_METADATA", "README.md"]),
    "a manager of Orbax": ("orbax", ["100/default/_METADATA", "200/_CHECKPOINT_METADATA", "notes.txt"]),
    "steps with a prefix": ("orbax", ["step_100/state/_METADATA", "metrics.json"]),
    "an unfinished step": ("orbax", ["100.orbax-checkpoint-tmp-1/default/_METADATA"]),
    "a SavedModel": ("savedmodel", ["saved_model.pb", "variables/variables.index", "README.md", "model.keras"]),
    "a hub's folder": (
        "torch",
        ["model.safetensors", "tf_model.h5", "pytorch_model.bin", "onnx/model.onnx", "README.md"],
    ),
}
SEVERAL = {
    "TF beside Orbax": (
        ["ckpt-1.index", "checkpoint", "100/default/_METADATA"],
        "Orbax checkpoint (100/), a TensorFlow",
    ),
    "a SavedModel beside TF": (["saved_model.pb", "ckpt-1.index"], "a SavedModel (saved_model.pb), a TensorFlow"),
    "a .keras file beside Orbax": (
        ["model.keras", "100/default/_METADATA"],
        "an Orbax checkpoint (100/), model.keras.",
    ),
    "a folder of TF beside Orbax": (
        ["best/_METADATA", "old/ckpt-1.index", "README.md"],
        "an Orbax checkpoint (best/), old/ (a TensorFlow checkpoint)",
    ),
    "safetensors beside TF": (
        ["model.safetensors", "model.ckpt.index"],
        "--from tf2-ckpt (or tf1-ckpt) or --from torch",
    ),
}
NONE = {
    "runs of several kinds": (
        ["jax_run/100/_CHECKPOINT_METADATA", "tf_run/ckpt-1.index", "README.md"],
        "jax_run/ (an Orbax checkpoint), tf_run/ (a TensorFlow checkpoint). Name one",
    ),
    "a base of versions": (
        ["1/saved_model.pb", "2/saved_model.pb"],
        "Its subdirectories 1, 2 are SavedModels. Name one",
    ),
    "notes": (
        ["README.md", "logs/events.out"],
        "contains no checkpoint (*.index, or Orbax's _METADATA)",
    ),
    "a file to be named": (["model.keras"], "It contains model.keras. Name one"),
}


def fill(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("name", ONE)
def test_a_directory_of_one_source_is_that(name: str, tmp_path: Path) -> None:
    kind, files = ONE[name]
    assert detect(fill(tmp_path, files)) == kind


@pytest.mark.parametrize("name", SEVERAL)
def test_a_directory_of_several_sources_names_them_and_asks_for_one(name: str, tmp_path: Path) -> None:
    files, found = SEVERAL[name]
    with pytest.raises(
        SourceUnreadable, match=r"contains several sources: .*Name the path of one, or use --from "
    ) as caught:
        detect(fill(tmp_path, files))
    assert found in str(caught.value)


@pytest.mark.parametrize("name", NONE)
def test_a_directory_that_is_no_source_names_those_in_it(name: str, tmp_path: Path) -> None:
    files, found = NONE[name]
    with pytest.raises(SourceUnreadable) as caught:
        detect(fill(tmp_path, files))
    assert found in str(caught.value)


def test_checkpoints_that_are_no_steps_of_one_training_are_named(tmp_path: Path) -> None:
    steps = fill(tmp_path / "steps", ["ckpt-9.index", "ckpt-10.index", "ckpt-10.data-00000-of-00001"])
    assert find_prefix(steps).name == "ckpt-10"
    with pytest.raises(SourceUnreadable, match=r"not steps of one training: decoder, encoder. Name one, such as "):
        find_prefix(fill(tmp_path / "parts", ["encoder.index", "decoder.index"]))
    named = fill(tmp_path / "named", ["encoder.index", "decoder.index"])
    (named / "checkpoint").write_text('model_checkpoint_path: "encoder"')
    assert find_prefix(named).name == "encoder"
