from pathlib import Path

import fsspec
import pytest

from tpuserve_server.core.models.local_storage import MAX_DEPTH, LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.storage import VersionLocation, is_uri
from tpuserve_server.storage import remote
from tpuserve_server.storage.by_scheme import ArtifactStorage, StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.object_store import ObjectStore, StoreError
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles

FILES = ModelFiles(("saved_model.pb",))


@pytest.fixture
def storage(tmp_path: Path) -> StorageByScheme:
    local = LocalStorage(lambda path: None, version_file=FILES.find_version_file)
    return StorageByScheme(local, RemoteStorage(VersionCache(tmp_path / "cache", 100), FILES))


@pytest.mark.parametrize(
    ("path", "expected"), [("/models/m", False), ("file:///models/m", False), ("s3://b/m", True), ("gs://b/m", True)]
)
def test_a_scheme_makes_a_uri(path: str, expected: bool) -> None:
    assert is_uri(path) is expected


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_folders_are_served_from_where_they_lie(storage: StorageByScheme, tmp_path: Path, scheme: str) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    found = storage.find_versions(f"{scheme}{tmp_path / 'm'}")
    assert found is not None
    assert storage.fetch(found[1]) == version
    assert storage.missing(found[1]) is None
    assert storage.fingerprint(found[1])
    storage.release(version)


def test_uris_are_copied(storage: StorageByScheme, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/by-scheme/1/saved_model.pb", b"x")
    found = storage.find_versions("memory://by-scheme")
    assert found is not None
    assert storage.missing(found[1]) is None
    assert storage.fingerprint(found[1])
    path = storage.fetch(found[1])
    assert path.is_relative_to(tmp_path / "cache")
    assert (path / "saved_model.pb").read_bytes() == b"x"
    storage.release(path)
    files.store.clear()


def test_only_the_version_with_objects_that_are_too_deep_or_too_many_is_refused(
    storage: StorageByScheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/by-scheme/1/saved_model.pb", b"x")
    files.pipe_file(f"/by-scheme/2/{'d/' * (MAX_DEPTH + 1)}x", b"x")
    for name in ("a", "b", "c"):
        files.pipe_file(f"/by-scheme/3/{name}", b"x")
    monkeypatch.setattr(remote, "MAX_ENTRIES", 2)
    found = storage.find_versions("memory://by-scheme")
    files.store.clear()
    assert found is not None
    assert storage.refusal(found[1]) == ""
    assert storage.refusal(found[2]) == f"{'d/' * (MAX_DEPTH + 1)}x is nested in more than {MAX_DEPTH} directories"
    assert storage.refusal(found[3]) == "the version has 3 objects; the limit is 2"
    with pytest.raises(FailedPrecondition, match="is nested in more than"):
        storage.fetch(found[2])


def test_a_base_path_that_nothing_can_read_is_refused_before_anybody_waits_for_it(storage: StorageByScheme) -> None:
    storage.check([ModelConfig("m", "/models/m"), ModelConfig("n", "memory://by-scheme")])
    with pytest.raises(InvalidArgument, match="does not support paths of nosuch://"):
        storage.check([ModelConfig("m", "/models/m"), ModelConfig("n", "nosuch://b/n")])


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_is_itself_a_version_is_refused_with_its_parent(
    storage: StorageByScheme, tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "m" / "7").mkdir(parents=True)
    (tmp_path / "m" / "7" / "saved_model.pb").touch()
    with pytest.raises(InvalidArgument, match=f"^Model m: base path .* is itself version 7: .*={tmp_path}/m, or"):
        storage.check([ModelConfig("m", f"{scheme}{tmp_path}/m/7")])
    storage.check([ModelConfig("m", f"{scheme}{tmp_path}/m"), ModelConfig("n", f"{scheme}{tmp_path}/absent")])


def test_a_version_in_a_store_is_known_for_one(storage: StorageByScheme) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/by-scheme/7/saved_model.pb", b"x")
    assert storage.find_versions("memory://by-scheme/7") == {}
    assert storage.find_version_file("memory://by-scheme/7") == "saved_model.pb"
    assert storage.find_versions("memory://by-scheme")
    assert storage.find_version_file("memory://by-scheme") == ""
    files.store.clear()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("foo://x/m", "The server does not support paths of foo://"),
        ("ftp://x/m", "The server does not support paths of ftp://"),
        ("s3://", "Model m: base path s3:// has no bucket or host after ://"),
        ("gs:///m", "Model m: base path gs:///m has no bucket or host after ://"),
        ("local:///etc", "Model m: base path local:///etc has no bucket or host after ://"),
        ("FILE:///etc", "Model m: base path FILE:///etc has no bucket or host after ://"),
        ("file://etc", "Model m: base path file://etc is relative. Write an absolute path, such as file:///models/…"),
        ("file://", "Model m: base path file:// is relative. Write an absolute path, such as file:///models/…"),
    ],
)
def test_a_base_path_that_no_store_can_read_is_refused_by_its_form(
    storage: StorageByScheme, path: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        storage.check([ModelConfig("m", path)])
    assert caught.value.message == message


def test_an_unusual_uri_is_an_error_of_the_store_and_no_other() -> None:
    files = ObjectStore("http")
    for uri in ("http://[::1", "http://[bad/%zz"):
        with pytest.raises(StoreError):
            files.list(uri)


def artifact_storage(tmp_path: Path, artifact: str) -> ArtifactStorage:
    local = LocalStorage(lambda path: None, version_file=FILES.find_version_file)
    remote = RemoteStorage(VersionCache(tmp_path / "cache", 100), FILES)
    return ArtifactStorage(local, remote, artifact, "AIP_STORAGE_URI")


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"x")
    return folder


@pytest.mark.parametrize(("name", "number"), [("export", 1), ("7", 7), ("007", 7)])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_with_a_model_is_a_version(tmp_path: Path, name: str, number: int, scheme: str) -> None:
    folder = put(tmp_path / name)
    artifact = f"{scheme}{folder}"
    found = artifact_storage(tmp_path, artifact).find_versions(artifact)
    assert found == {number: VersionLocation(str(folder))}
    assert artifact_storage(tmp_path, artifact).fetch(found[number]) == folder
    assert artifact_storage(tmp_path, artifact).fingerprint(found[number])


def test_version_directories_take_precedence(tmp_path: Path) -> None:
    folder = put(tmp_path / "export")
    put(folder / "3")
    assert artifact_storage(tmp_path, str(folder)).find_versions(str(folder)) == {3: VersionLocation(str(folder / "3"))}


def test_a_folder_without_a_model_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert artifact_storage(tmp_path, str(tmp_path / "empty")).find_versions(str(tmp_path / "empty")) == {}
    assert artifact_storage(tmp_path, str(tmp_path / "none")).find_versions(str(tmp_path / "none")) is None


def test_a_uri_with_a_model_is_copied_like_a_version(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/artifact/export/saved_model.pb", b"x")
    files.pipe_file("/artifact/export/variables/variables.index", b"y")
    artifact = "memory://artifact/export/"
    stored = artifact_storage(tmp_path, artifact)
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
    stored = artifact_storage(tmp_path, str(artifact))
    stored.check([ModelConfig("m", str(artifact))])
    assert stored.find_versions(str(other)) == {}
    with pytest.raises(InvalidArgument, match=r"contains saved_model\.pb itself"):
        stored.check([ModelConfig("m", str(other))])


def test_an_unknown_scheme_is_refused_with_the_name_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^AIP_STORAGE_URI: The server does not support paths of nosuch://"):
        artifact_storage(tmp_path, "nosuch://b/m").check([])
