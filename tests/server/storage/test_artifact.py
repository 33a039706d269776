"""Tests for a path that may be a version itself, local and in a store."""

from pathlib import Path

import fsspec
import pytest

from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.storage.artifact import ArtifactStorage
from tpuserve_server.storage.by_scheme import StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles

FILES = ModelFiles(("saved_model.pb",))


def storage(tmp_path: Path, artifact: str) -> ArtifactStorage:
    local = LocalStorage(lambda path: None, version_file=FILES.find_version_file)
    by_scheme = StorageByScheme(local, RemoteStorage(VersionCache(tmp_path / "cache", 100), FILES))
    return ArtifactStorage(by_scheme, artifact, "AIP_STORAGE_URI")


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"x")
    return folder


@pytest.mark.parametrize(("name", "number"), [("export", 1), ("7", 7), ("007", 7)])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_with_a_model_is_a_version(tmp_path: Path, name: str, number: int, scheme: str) -> None:
    folder = put(tmp_path / name)
    artifact = f"{scheme}{folder}"
    found = storage(tmp_path, artifact).find_versions(artifact)
    assert found == {number: VersionLocation(str(folder))}
    assert storage(tmp_path, artifact).fetch(found[number]) == folder
    assert storage(tmp_path, artifact).fingerprint(found[number])


def test_version_directories_take_precedence(tmp_path: Path) -> None:
    folder = put(tmp_path / "export")
    put(folder / "3")
    assert storage(tmp_path, str(folder)).find_versions(str(folder)) == {3: VersionLocation(str(folder / "3"))}


def test_a_folder_without_a_model_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert storage(tmp_path, str(tmp_path / "empty")).find_versions(str(tmp_path / "empty")) == {}
    assert storage(tmp_path, str(tmp_path / "none")).find_versions(str(tmp_path / "none")) is None


def test_a_uri_with_a_model_is_copied_like_a_version(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/artifact/export/saved_model.pb", b"x")
    files.pipe_file("/artifact/export/variables/variables.index", b"y")
    artifact = "memory://artifact/export/"
    stored = storage(tmp_path, artifact)
    found = stored.find_versions(artifact)
    assert found == {1: VersionLocation("memory://artifact/export")}
    before = stored.fingerprint(found[1])
    assert stored.missing(found[1]) is None
    path = stored.fetch(found[1])
    assert (path / "saved_model.pb").read_bytes() == b"x"
    assert (path / "variables" / "variables.index").read_bytes() == b"y"
    stored.release(path)
    files.pipe_file("/artifact/export/saved_model.pb", b"new")
    stored.find_versions(artifact)
    assert stored.fingerprint(found[1]) != before
    files.pipe_file("/artifact/export/2/saved_model.pb", b"z")
    assert stored.find_versions(artifact) == {2: VersionLocation("memory://artifact/export/2")}
    with pytest.raises(FileNotFoundError):
        stored.fingerprint(found[1])
    files.store.clear()


def test_only_the_artifact_may_be_a_version(tmp_path: Path) -> None:
    artifact, other = put(tmp_path / "export"), put(tmp_path / "other")
    stored = storage(tmp_path, str(artifact))
    stored.check([ModelConfig("m", str(artifact))])
    assert stored.find_versions(str(other)) == {}
    with pytest.raises(InvalidArgument, match=r"contains saved_model\.pb itself"):
        stored.check([ModelConfig("m", str(other))])


def test_an_unknown_scheme_is_refused_with_the_name_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^AIP_STORAGE_URI: The server does not support base paths of nosuch://"):
        storage(tmp_path, "nosuch://b/m").check([])
