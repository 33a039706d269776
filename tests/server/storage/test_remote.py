"""Tests for RemoteStorage with real servers of S3 and GCS."""

import json
import logging
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.support.object_stores import RunningStore
from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, Unavailable
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.storage import download
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.listings import StoreUnavailable
from tpuserve_server.storage.object_store import ObjectStore, StoredObject
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles

FILES = ModelFiles(("saved_model.pb", "model.tflite"))

PARTS = {
    "saved_model.pb": b"graph",
    "variables/variables.index": b"index",
    "variables/variables.data-00000-of-00002": b"first",
    "variables/variables.data-00001-of-00002": b"",
}


@pytest.fixture
def base(store: RunningStore, tmp_path: Path) -> str:
    """Return a separate path in the bucket for each test."""
    return f"models/{tmp_path.name}"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteStorage]:
    storage = RemoteStorage(VersionCache(tmp_path / "cache", 10**6), FILES, patience_s=100)
    yield storage
    storage.close()


def put_version(store: RunningStore, path: str, parts: dict[str, bytes] = PARTS) -> None:
    for name, content in parts.items():
        store.put(f"{path}/{name}", content)


def with_manifest(parts: dict[str, bytes]) -> dict[str, bytes]:
    files = {name: {"sha256": sha256(part).hexdigest(), "size_bytes": len(part)} for name, part in parts.items()}
    return {**parts, "assets.extra/tpuserve/manifest.json": json.dumps({"format_version": 1, "files": files}).encode()}


def find(storage: RemoteStorage, store: RunningStore, base: str) -> dict[int, VersionLocation]:
    found = storage.find_versions(store.uri(base))
    assert found is not None
    return found


def poll_until_found(storage: RemoteStorage, store: RunningStore, base: str) -> dict[int, VersionLocation]:
    """Poll until the store responds, like the source."""
    while True:
        try:
            return find(storage, store, base)
        except StoreUnavailable:
            threading.Event().wait(0.1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_folders_named_by_numbers_are_versions(storage: RemoteStorage, store: RunningStore, base: str) -> None:
    for folder in ("1", "007", "7", "notes", "9x"):
        store.put(f"{base}/{folder}/saved_model.pb", b"x")
    store.put(f"{base}/12", b"a file, no folder")
    store.put(f"{base}-beside/3/saved_model.pb", b"x")
    found = find(storage, store, base)
    assert found == {
        1: VersionLocation(store.uri(f"{base}/1")),
        7: VersionLocation(store.uri(f"{base}/7"), ("007",)),
    }
    assert storage.find_versions(f"{store.uri(base)}/") == found


def test_where_nothing_is_no_base_path_is(storage: RemoteStorage, store: RunningStore, base: str) -> None:
    assert storage.find_versions(store.uri(base)) is None
    assert storage.find_versions(f"{store.scheme}://tpuserve-no-such-bucket/m") is None


def test_one_listing_shows_that_a_base_path_is_itself_a_version(
    storage: RemoteStorage, store: RunningStore, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_version(store, f"{base}/1")
    listed: list[str] = []
    list_objects = ObjectStore.list

    def list_and_count(self: ObjectStore, base_path: str) -> object:
        listed.append(base_path)
        return list_objects(self, base_path)

    monkeypatch.setattr(ObjectStore, "list", list_and_count)
    assert storage.find_versions(store.uri(f"{base}/1")) == {}
    assert storage.find_version_file(f"{store.uri(base)}/1/") == "saved_model.pb"
    assert listed == [store.uri(f"{base}/1")]


def test_a_version_is_copied_as_it_is_and_once(storage: RemoteStorage, store: RunningStore, base: str) -> None:
    big = np.random.default_rng(0).bytes(900_000)
    put_version(store, f"{base}/3", {**PARTS, "assets/vocabulary é.txt": big})
    location = find(storage, store, base)[3]
    path = storage.fetch(location)
    assert path.name == "3"
    assert contents(path) == {**PARTS, "assets/vocabulary é.txt": big}
    assert storage.holds(path)
    assert storage.fetch(location) == path
    storage.release(path)
    storage.release(path)
    assert not storage.holds(path)


def test_ranges_are_put_together_in_their_order(
    storage: RemoteStorage, store: RunningStore, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_RANGE_BYTES", 1000)
    content = np.random.default_rng(1).bytes(20_500)
    put_version(store, f"{base}/1", {**PARTS, "variables/variables.data-00001-of-00002": content})
    path = storage.fetch(find(storage, store, base)[1])
    assert (path / "variables" / "variables.data-00001-of-00002").read_bytes() == content


def test_the_fingerprint_changes_with_the_contents_alone(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    put_version(store, f"{base}/1")
    before = storage.fingerprint(find(storage, store, base)[1])
    assert storage.fingerprint(find(storage, store, base)[1]) == before
    store.put(f"{base}/1/saved_model.pb", b"GRAPH")
    after = storage.fingerprint(find(storage, store, base)[1])
    assert after != before
    store.delete(f"{base}/1/variables/variables.index")
    assert storage.fingerprint(find(storage, store, base)[1]) not in (before, after)


def test_a_version_with_a_manifest_is_whole_when_all_it_lists_is_there(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    parts = with_manifest(PARTS)
    last = "variables/variables.data-00000-of-00002"
    put_version(store, f"{base}/1", {name: part for name, part in parts.items() if name != last})
    assert storage.missing(find(storage, store, base)[1])
    store.put(f"{base}/1/{last}", b"shorter" * 3)
    assert storage.missing(find(storage, store, base)[1])
    store.put(f"{base}/1/{last}", parts[last])
    assert storage.missing(find(storage, store, base)[1]) == ""
    store.put(f"{base}/1/assets.extra/tpuserve/manifest.json", b"{}")
    assert storage.missing(find(storage, store, base)[1])


def test_a_manifest_that_does_not_come_keeps_the_poller_no_longer_than_a_listing(
    store: RunningStore, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = RemoteStorage(VersionCache(tmp_path / "cache", 10**6), FILES, patience_s=0.2)
    put_version(store, f"{base}/1", with_manifest(PARTS))
    location = poll_until_found(storage, store, base)[1]
    answers = threading.Event()
    read = ObjectStore.read

    def read_late(self: ObjectStore, stored: StoredObject, start: int, end: int) -> bytes:
        assert answers.wait(10)
        return read(self, stored, start, end)

    monkeypatch.setattr(ObjectStore, "read", read_late)
    with pytest.raises(StoreUnavailable, match="not responded yet"):
        storage.missing(location)
    answers.set()
    while True:
        try:
            assert storage.missing(location) == ""
            break
        except StoreUnavailable:
            threading.Event().wait(0.1)


def test_a_version_without_a_manifest_must_have_its_parts_and_stand_still(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    for name, part in PARTS.items():
        store.put(f"{base}/1/{name}", part)
        is_whole = name in ("saved_model.pb", "variables/variables.data-00001-of-00002")
        if name == "variables/variables.index":
            # An index alone may be complete. The next poll sees the first shard.
            is_whole = True
        assert (storage.missing(find(storage, store, base)[1]) is None) is is_whole
    store.put(f"{base}/2/assets/words.txt", b"x")
    assert storage.missing(find(storage, store, base)[2])
    store.put(f"{base}/3/model.tflite", b"x")
    assert storage.missing(find(storage, store, base)[3]) is None


def test_an_object_that_is_not_what_the_manifest_says_is_refused_and_not_kept(
    storage: RemoteStorage, store: RunningStore, base: str, tmp_path: Path
) -> None:
    put_version(store, f"{base}/1", {**with_manifest(PARTS), "saved_model.pb": b"GRAPH"})
    location = find(storage, store, base)[1]
    assert storage.missing(location) == ""
    with pytest.raises(FailedPrecondition, match=r"saved_model\.pb is corrupt: its sha256") as caught:
        storage.fetch(location)
    assert str(tmp_path) not in caught.value.message
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["lock"]
    put_version(store, f"{base}/1", with_manifest(PARTS))
    assert contents(storage.fetch(find(storage, store, base)[1])) == with_manifest(PARTS)


def test_an_object_that_arrives_otherwise_than_the_store_has_it_is_refused(
    storage: RemoteStorage, store: RunningStore, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    # The listing has the hash of the earlier content.
    store.put(f"{base}/1/saved_model.pb", b"GRAPH")
    with pytest.raises(DataLoss, match=r"saved_model\.pb is corrupt"):
        storage.fetch(location)


def test_a_version_that_changes_while_it_is_copied_is_refused(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    store.put(f"{base}/1/assets/more.txt", b"x")
    with pytest.raises(Unavailable, match="changed while the server copied it"):
        storage.fetch(location)


def test_a_version_that_is_deleted_while_it_is_copied_is_refused(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    store.delete(f"{base}/1")
    with pytest.raises(Unavailable, match=r"Cannot copy (saved_model.pb|variables.*) from"):
        storage.fetch(location)
    assert storage.find_versions(store.uri(base)) is None


def test_a_version_that_was_deleted_is_not_found(storage: RemoteStorage, store: RunningStore, base: str) -> None:
    for number in (1, 2):
        put_version(store, f"{base}/{number}")
    location = find(storage, store, base)[2]
    store.delete(f"{base}/2")
    assert find(storage, store, base).keys() == {1}
    with pytest.raises(FileNotFoundError):
        storage.fingerprint(location)
    with pytest.raises(FailedPrecondition, match="no longer in its store"):
        storage.fetch(location)


def test_a_restart_loads_from_the_cache(
    storage: RemoteStorage, store: RunningStore, base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_version(store, f"{base}/1")
    path = storage.fetch(find(storage, store, base)[1])
    storage.release(path)
    with caplog.at_level(logging.INFO, "tpuserve_server.storage"):
        again = RemoteStorage(VersionCache(tmp_path / "cache", 10**6), FILES, patience_s=100)
        assert again.fetch(find(again, store, base)[1]) == path
    assert "Copying" not in caplog.text


def test_a_version_larger_than_the_cache_says_so(store: RunningStore, base: str, tmp_path: Path) -> None:
    storage = RemoteStorage(VersionCache(tmp_path / "cache", 10), FILES, patience_s=100)
    put_version(store, f"{base}/1")
    with pytest.raises(FailedPrecondition, match="15 bytes, more than the limit of the storage cache: 10"):
        storage.fetch(find(storage, store, base)[1])


def test_close_ends_a_copy(storage: RemoteStorage, store: RunningStore, base: str) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    storage.close()
    with pytest.raises(Unavailable, match="stopping"):
        storage.fetch(location)


@pytest.mark.parametrize("name", ["1//saved_model.pb", "1/./x", "1/a/../../../x"])
def test_names_that_lead_out_of_the_folder_are_refused(
    storage: RemoteStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # Clients and test servers normalise such names, but fsspec's in-memory store keeps them.
    import fsspec

    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pipe_file("/m/1/saved_model.pb", b"x")
    written = files.store["/m/1/saved_model.pb"]
    files.store[f"/m/{name}"] = written
    found = storage.find_versions("memory://m")
    assert found is not None
    with pytest.raises(FailedPrecondition, match="is outside the version directory"):
        storage.fetch(found[1])
    files.store.clear()


@pytest.mark.slow
def test_a_store_that_goes_away_is_an_error_of_its_base_path_until_it_returns(
    store: RunningStore, base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = RemoteStorage(VersionCache(tmp_path / "cache", 10**6), FILES)
    put_version(store, f"{base}/1")
    location = poll_until_found(storage, store, base)[1]
    store.stop()
    try:
        # The library's final error, or the message that it has not responded yet.
        with pytest.raises(StoreUnavailable, match=r"Error: |not responded yet"):
            storage.find_versions(store.uri(base))
    finally:
        store.start()
    with caplog.at_level(logging.INFO, "tpuserve_server.storage"):
        assert poll_until_found(storage, store, base) == {1: location}
    assert caplog.text.count("responds again") == 1
    assert contents(storage.fetch(location)) == PARTS


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_copy_from_a_store_that_has_gone_away_fails_with_the_reason(
    storage: RemoteStorage, store: RunningStore, base: str
) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    store.stop()
    try:
        with pytest.raises(Unavailable, match=r"Cannot copy \S+ from its store: \w+$") as caught:
            storage.fetch(location)
    finally:
        store.start()
    assert "127.0.0.1" not in caught.value.message
    assert contents(storage.fetch(location)) == PARTS


def test_of_two_threads_that_fetch_one_version_one_copies(
    storage: RemoteStorage, store: RunningStore, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    put_version(store, f"{base}/1")
    location = find(storage, store, base)[1]
    paths: list[Path] = []
    with caplog.at_level(logging.INFO, "tpuserve_server.storage"):
        threads = [threading.Thread(target=lambda: paths.append(storage.fetch(location))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(paths)) == 1
    assert caplog.text.count("Copying") == 1
