"""Tests that a version's labels come from the file that its manifest names and lists."""

from pathlib import Path

import pytest

from tpuserve_formats.manifest.version import ManifestFile
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.versions.loading import read_labels
from tpuserve_server.versions.manifest import Manifest

NAME = "assets.extra/labels.txt"


def manifest(labels: str | None = NAME, size_bytes: int = 8) -> Manifest:
    files = {NAME: ManifestFile(sha256="0" * 64, size_bytes=size_bytes)}
    return Manifest(format_version=1, labels=labels, files=files)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / NAME).write_text("cat\ndog\n")
    return tmp_path


def test_labels_are_the_lines_of_the_file(version: Path) -> None:
    assert read_labels(version, manifest()) == ("cat", "dog")


@pytest.mark.parametrize(
    "described",
    [None, manifest(labels=None), manifest(labels="../secret.txt"), manifest(size_bytes=(1 << 20) + 1)],
    ids=["no manifest", "no labels", "a file that is not listed", "a file that is too large"],
)
def test_there_may_be_none(version: Path, described: Manifest | None) -> None:
    assert read_labels(version, described) == ()


def test_a_file_that_is_no_text_is_refused(version: Path) -> None:
    (version / NAME).write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FailedPrecondition, match=r"assets.extra/labels.txt cannot be read as text"):
        read_labels(version, manifest())
