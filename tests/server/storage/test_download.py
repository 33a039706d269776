"""Tests for copies from a store whose objects differ from its listing."""

import base64
import hashlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pytest

from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, Unavailable
from tpuserve_server.storage import download as module
from tpuserve_server.storage.download import download
from tpuserve_server.storage.object_store import StoredObject, StoreError


@dataclass
class Sender:
    """A store that sends `contents` by name, whatever it listed."""

    contents: Mapping[str, bytes]
    sure_of_md5: bool = True

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        return self.contents[stored.name][start:end]

    def has_md5(self, stored: StoredObject) -> bool:
        return self.sure_of_md5


def listed(name: str, content: bytes, *, md5: bool = True, crc32c: bool = False) -> StoredObject:
    checksum = google_crc32c.Checksum(content).digest() if crc32c else None
    return StoredObject(name, name, len(content), "", hashlib.md5(content).digest() if md5 else None, checksum)


def fetch(sender: Sender, target: Path, *objects: StoredObject) -> dict[str, str]:
    return download(sender, objects, target, what="m", stop=threading.Event())


def test_files_are_written_and_hashed(tmp_path: Path) -> None:
    contents = {"a": b"1", "b/c": b"", "b/d": b"3" * 100}
    hashes = fetch(Sender(contents), tmp_path, *(listed(name, content) for name, content in contents.items()))
    assert hashes == {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


@pytest.mark.parametrize(("md5", "crc32c", "what"), [(True, False, "its MD5 is"), (False, True, "its CRC32C is not")])
def test_what_is_not_what_was_listed_is_corrupt(tmp_path: Path, md5: bool, crc32c: bool, what: str) -> None:
    with pytest.raises(DataLoss, match=f"a is corrupt: {what}"):
        fetch(Sender({"a": b"124"}), tmp_path, listed("a", b"123", md5=md5, crc32c=crc32c))


def test_a_hash_that_only_looks_like_an_md5_is_no_reason(tmp_path: Path) -> None:
    fetch(Sender({"a": b"124"}, sure_of_md5=False), tmp_path, listed("a", b"123"))


def test_a_store_that_goes_away_while_a_hash_is_asked_after_is_unavailable(tmp_path: Path) -> None:
    class Away(Sender):
        def has_md5(self, stored: StoredObject) -> bool:
            raise StoreError(ConnectionError("10.0.0.1 refused"))

    with pytest.raises(Unavailable, match=r"Cannot copy a from its store: ConnectionError$"):
        fetch(Away({"a": b"124"}), tmp_path, listed("a", b"123"))


def test_a_crc32c_that_is_right_is_fine(tmp_path: Path) -> None:
    known = StoredObject("a", "a", 9, "", None, base64.b64decode("4waSgw=="))
    fetch(Sender({"a": b"123456789"}), tmp_path, known)


def test_an_object_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataLoss, match="a became shorter while the server copied it"):
        fetch(Sender({"a": b"12"}), tmp_path, listed("a", b"123", md5=False))


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "a//b", "./a", "a\0b", ""])
def test_a_name_that_leads_out_is_refused_before_anything_is_written_there(tmp_path: Path, name: str) -> None:
    target = tmp_path / "version"
    target.mkdir()
    with pytest.raises(FailedPrecondition, match="is outside the version directory"):
        fetch(Sender({name: b"1"}), target, listed(name, b"1"))
    assert list(tmp_path.rglob("*")) == [target]


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("a", "a")])
def test_an_object_cannot_be_a_folder_too(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(FailedPrecondition, match="has the same name as a directory"):
        fetch(Sender(dict.fromkeys(names, b"1")), tmp_path, *(listed(name, b"1") for name in names))


def test_long_copies_say_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tpuserve_server.storage")
    monkeypatch.setattr(module, "_PROGRESS_S", 0.01)
    monkeypatch.setattr(module, "_RANGE_BYTES", 1_000_000)
    said = threading.Event()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    class Slow(Sender):
        def read(self, stored: StoredObject, start: int, end: int) -> bytes:
            if start:
                assert said.wait(10)
            return super().read(stored, start, end)

    handler = Listening()
    logging.getLogger("tpuserve_server.storage").addHandler(handler)
    try:
        content = b"x" * 2_000_000
        fetch(Slow({"a": content}), tmp_path, listed("a", content))
    finally:
        logging.getLogger("tpuserve_server.storage").removeHandler(handler)
    assert "Copying m: " in caplog.text
    assert "of 2.0 MB" in caplog.text


def test_a_stop_in_the_middle_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RANGE_BYTES", 1)
    stop = threading.Event()

    class Stopping(Sender):
        def read(self, stored: StoredObject, start: int, end: int) -> bytes:
            stop.set()
            return super().read(stored, start, end)

    with pytest.raises(Unavailable, match="stopping"):
        download(Stopping({"a": b"1" * 50}), [listed("a", b"1" * 50)], tmp_path, what="m", stop=stop)
