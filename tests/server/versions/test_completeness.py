import os
from pathlib import Path

import pytest

from tpuserve_server.versions.completeness import ModelFiles

FILES = ModelFiles(("saved_model.pb", "saved_model.pbtxt", "model.tflite"))

MANIFEST = (
    '{"format_version": 1, "files": {"saved_model.pb": {"sha256": "x", "size_bytes": 5}, '
    '"variables/variables.index": {"sha256": "y", "size_bytes": 2}}}'
)


def add(version: Path, name: str, content: str = "model") -> None:
    path = version / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize(
    ("names", "lacks"),
    [
        ([], "its directory is empty"),
        (["variables/variables.index", "assets/vocabulary.txt"], "saved_model.pb is missing"),
        (["saved_model.pb"], ""),
        (["saved_model.pbtxt"], ""),
        (["model.tflite"], ""),
        (["saved_model.pb", "variables/variables.data-00000-of-00001"], "variables/variables.index is missing"),
        (
            ["saved_model.pb", "variables/variables.index", "variables/variables.data-00001-of-00002"],
            "variables/variables.data-00000-of-00002 is missing",
        ),
        (["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"], ""),
    ],
)
def test_what_a_version_without_a_manifest_lacks(tmp_path: Path, names: list[str], lacks: str) -> None:
    for name in names:
        add(tmp_path, name)
    assert FILES.missing_part(names) == lacks
    assert FILES.missing(tmp_path) == (lacks or None)


def test_a_folder_in_place_of_the_model_is_named(tmp_path: Path) -> None:
    add(tmp_path, "saved_model.pb/variables.index")
    assert FILES.missing(tmp_path) == "saved_model.pb is a directory, not a file"


def test_a_name_that_is_not_utf8_is_shown_in_utf8(tmp_path: Path) -> None:
    add(tmp_path, "saved_model.pb")
    (tmp_path / os.fsdecode(b"\xff.data-00000-of-00001")).touch()
    assert FILES.missing(tmp_path) == r"\udcff.index is missing"


def test_what_a_version_with_a_manifest_lacks(tmp_path: Path) -> None:
    add(tmp_path, "assets.extra/tpuserve/manifest.json", MANIFEST)
    assert FILES.missing(tmp_path) == "saved_model.pb is missing; the manifest lists it"
    add(tmp_path, "saved_model.pb", "mod")
    assert FILES.missing(tmp_path) == "saved_model.pb has 3 bytes; the manifest has 5"
    add(tmp_path, "saved_model.pb")
    assert FILES.missing(tmp_path) == "variables/variables.index is missing; the manifest lists it"
    add(tmp_path, "variables/variables.index", "xy")
    assert FILES.missing(tmp_path) == ""


def test_a_folder_is_known_for_a_version_by_its_model() -> None:
    assert FILES.find_version_file(["variables", "saved_model.pb"]) == "saved_model.pb"
    assert FILES.find_version_file(["assets.extra/tpuserve/manifest.json"]) == "assets.extra/tpuserve/manifest.json"
    assert FILES.find_version_file(["1", "README.md"]) == ""
