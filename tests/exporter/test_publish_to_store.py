"""Tests for versions in s3:// and gs://: the server's code finds them complete or not at all."""

import hashlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.conftest import Finished
from tests.support.free_ports import free_ports
from tests.support.object_stores import RunningStore, running_store
from tpuserve_exporter.destinations.destination import open_destination
from tpuserve_exporter.destinations.object_store import CLAIM_FILE, ObjectStore, StoreFiles
from tpuserve_exporter.errors import MissingExtra, OptionConflict, PublishFailed
from tpuserve_exporter.options.store_uri import StoreUri, parse_out_base
from tpuserve_server.core.terms.errors import FailedPrecondition, ServingError
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles

TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "2")
FILES = ("assets.extra/tpuserve/manifest.json", "saved_model.pb", "variables/variables.index",
         "variables/variables.data-00000-of-00001")  # fmt: skip


@pytest.fixture(scope="session", params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with running_store(request.param, tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def base(store: RunningStore, request: pytest.FixtureRequest) -> str:
    """Return a separate base path for each test."""
    return store.uri(f"exporter/{request.node.name.partition('[')[0]}/m")


@pytest.fixture
def destination(base: str) -> ObjectStore:
    destination = open_destination(parse_out_base(base))
    assert isinstance(destination, ObjectStore)
    return destination


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RemoteStorage]:
    """Yield the storage that a server reads with."""
    storage = RemoteStorage(VersionCache(tmp_path / "cache", 2**30), ModelFiles(("saved_model.pb",)), patience_s=10.0)
    yield storage
    storage.close()


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """Return a directory with a version's file names. Its manifest lists the other files."""
    folder = tmp_path / "staged"
    entries = {}
    for name in FILES[1:]:
        content = name.encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        entries[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    (folder / FILES[0]).parent.mkdir(parents=True)
    (folder / FILES[0]).write_text(json.dumps({"format_version": 1, "files": entries}))
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group(__name__)
def test_an_export_is_read_by_the_server_and_the_next_takes_the_next_number(
    export: Callable[..., Finished], tiny_checkpoint: Path, base: str, reader: RemoteStorage, store: RunningStore
) -> None:
    first = export(tiny_checkpoint, base, *TINY, "--json")
    assert first.code == 0, first.out
    assert (first.document["version"], first.document["path"]) == (1, f"{base}/1")
    versions = reader.find_versions(base)
    assert versions is not None
    assert reader.missing(versions[1]) == ""
    fetched = reader.fetch(versions[1])
    assert (fetched / "saved_model.pb").is_file()
    reader.release(fetched)
    store.put(f"{base.partition('://')[2].partition('/')[2]}/6/saved_model.pb", b"another's")
    second = export(tiny_checkpoint, base, *TINY, "--version", "6")
    assert (second.code, second.out) != (0, "")
    assert f"version 6 of {base} already exists, and published versions never change" in second.err
    third = export(tiny_checkpoint, base, *TINY, "--json")
    assert third.document["version"] == 7


def test_objects_arrive_with_the_model_after_its_weights_and_the_manifest_last(
    destination: ObjectStore, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = _record_uploads(monkeypatch)
    assert destination.publish(staged, "next") == 1
    names = [uri.partition("/m/1/")[2] for uri in arrived]
    assert names[-2:] == ["saved_model.pb", "assets.extra/tpuserve/manifest.json"]
    assert sorted(names) == sorted(FILES)


@pytest.mark.parametrize("arriving", range(len(FILES)))
def test_a_kill_at_any_point_leaves_nothing_that_a_server_loads(
    store: RunningStore, staged: Path, monkeypatch: pytest.MonkeyPatch, reader: RemoteStorage, arriving: int
) -> None:
    base = store.uri(f"killed/{arriving}/m")
    destination = open_destination(parse_out_base(base))
    _record_uploads(monkeypatch, stop_after=arriving)
    # No cleanup happens after SIGKILL.
    monkeypatch.setattr(ObjectStore, "_remove", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        destination.publish(staged, "next")
    versions = reader.find_versions(base)
    assert versions is not None
    assert reader.missing(versions[1])
    with pytest.raises(ServingError):  # a server tries such a version after a while
        reader.fetch(versions[1])
    monkeypatch.undo()
    assert destination.publish(staged, "next") == 2


def test_a_broken_off_upload_is_deleted_again(
    destination: ObjectStore, staged: Path, monkeypatch: pytest.MonkeyPatch, store: RunningStore, base: str
) -> None:
    _record_uploads(monkeypatch, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        destination.publish(staged, "next")
    assert store.files.find(base.partition("://")[2]) == []
    monkeypatch.undo()
    assert destination.publish(staged, "next") == 1


@pytest.mark.parametrize(
    ("hours", "names", "left"),
    [
        (25, FILES[1:], False),
        (23, FILES[1:], True),  # its exporter may still be running
        (25, FILES, True),
    ],
    ids=["abandoned", "recent", "published"],
)
def test_what_a_killed_export_left_is_deleted_by_one_a_day_later(
    store: RunningStore, staged: Path, request: pytest.FixtureRequest, hours: int, names: tuple[str, ...], left: bool
) -> None:
    base = parse_out_base(store.uri(f"abandoned/{request.node.callspec.id}/m"))
    assert isinstance(base, StoreUri)
    for name in (CLAIM_FILE.as_posix(), *names):
        store.put(f"{base.key.partition('/')[2]}/3/{name}", b"left")
    store.put(f"{base.key.partition('/')[2]}/2/saved_model.pb", b"by another tool, which claims nothing")
    later = ObjectStore(base, clock=lambda: time.time() + hours * 3600)
    with later.staging():
        pass
    files = StoreFiles(base.scheme)
    assert sorted(files.folders(base)) == (["2", "3"] if left else ["2"])
    assert set(files.sizes(base / "3")) == ({CLAIM_FILE.as_posix(), *names} if left else set())
    assert later.publish(staged, "next") == (4 if left else 3)


def test_of_racing_exporters_each_gets_a_number(base: str, staged: Path, store: RunningStore) -> None:
    """Race for numbers.

    Only S3 supports the real race: the GCS emulator ignores conditions, so its exporters take turns.
    """
    numbers, lock = list[int](), threading.Lock()

    def publish() -> None:
        destination = open_destination(parse_out_base(base))
        with lock if store.scheme == "gs" else threading.Lock():
            numbers.append(destination.publish(staged, "next"))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2, 3, 4]


def test_a_claim_is_known_again_whatever_its_bytes(
    destination: ObjectStore, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use bytes whose last byte the GCS emulator would drop if the claim were raw bytes."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"fifteen letters\r"))
    assert destination.publish(staged, "next") == 1


def test_a_file_that_arrives_cut_short_is_seen_before_the_manifest(
    destination: ObjectStore, staged: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full, cut = StoreFiles.upload, tmp_path / "cut"
    cut.write_bytes(b"sav")
    monkeypatch.setattr(
        StoreFiles,
        "upload",
        lambda files, path, uri: full(files, cut if path.name == "saved_model.pb" else path, uri),
    )
    with pytest.raises(PublishFailed, match=r"3 of 14 bytes of saved_model\.pb arrived"):
        destination.publish(staged, "next")
    assert destination.newest() is None


def test_the_newest_version_is_read_with_its_sizes(destination: ObjectStore, staged: Path) -> None:
    assert destination.newest() is None
    destination.publish(staged, "next")
    newest = destination.newest()
    assert newest is not None
    assert newest.manifest == (staged / FILES[0]).read_bytes()
    assert (newest.number, newest.sizes["saved_model.pb"]) == (1, 14)


def test_a_bucket_that_is_not_there_is_named_before_any_work(store: RunningStore) -> None:
    missing = open_destination(parse_out_base(f"{store.scheme}://no-such-bucket-here/models/m"))
    with pytest.raises(PublishFailed, match="there is no bucket no-such-bucket-here"):
        missing.check("next")


# The GCS emulator needs no credentials.
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_without_credentials_it_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch, store: RunningStore) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(PublishFailed, match=r"no credentials were found\. Run aws configure, or set AWS_ACCESS_KEY_ID"):
        open_destination(parse_out_base("s3://bucket/m")).check("next")


# Only S3: gcsfs retries for a minute.
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_store_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch, store: RunningStore) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(PublishFailed, match="cannot reach the store"):
        open_destination(parse_out_base("s3://bucket/m")).check("next")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, store: RunningStore) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    extra = "s3" if store.scheme == "s3" else "gcs"
    with pytest.raises(MissingExtra, match=rf"pip install 'tpuserve-exporter\[{extra}\]'"):
        open_destination(parse_out_base(f"{store.scheme}://bucket/m"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://host/models/m", "Use a directory, gs:// or s3:// instead of http://"),
        ("s3://bucket", "s3://BUCKET/PATH/MODEL"),
        ("gs:///models/m", "gs://BUCKET/PATH/MODEL"),
    ],
)
def test_uris_that_cannot_be_published_to(text: str, message: str) -> None:
    with pytest.raises(OptionConflict, match=message):
        parse_out_base(text)


def test_uris_and_directories_are_told_apart() -> None:
    assert parse_out_base("models/m") == Path("models/m")
    uri = parse_out_base("GS://bucket/models/m/")
    assert (str(uri), uri.name, str(uri / "3")) == ("gs://bucket/models/m", "m", "gs://bucket/models/m/3")


def test_a_claimed_version_without_a_manifest_is_refused_by_the_server(
    store: RunningStore, reader: RemoteStorage
) -> None:
    """Refuse the files of a killed export, which are complete except for the manifest."""
    for name in (*FILES[1:], "assets.extra/tpuserve/claim"):
        store.put(f"claimed/m/1/{name}", b"x")
    versions = reader.find_versions(store.uri("claimed/m"))
    assert versions is not None
    assert reader.missing(versions[1])
    with pytest.raises(FailedPrecondition, match="the version was not published completely"):
        reader.fetch(versions[1])


def _record_uploads(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    """Return the list of uploaded URIs, which grows.

    Raise KeyboardInterrupt instead of the upload after `stop_after`.
    """
    upload, arrived = StoreFiles.upload, list[str]()

    def record(files: StoreFiles, path: Path, uri: Any) -> None:  # noqa: ANN401 - a StoreUri
        if len(arrived) == stop_after:
            raise KeyboardInterrupt
        upload(files, path, uri)
        arrived.append(str(uri))

    monkeypatch.setattr(StoreFiles, "upload", record)
    return arrived
