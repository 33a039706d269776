"""Tests for the content of files that flags name, on this machine and in real servers of S3 and GCS."""

import os
from pathlib import Path

import pytest

from tests.support.object_stores import RunningStore
from tpuserve_server.storage.named_file import read_file


def test_a_file_of_this_machine_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.config"
    file.write_bytes(b"content")
    for name in (file, str(file), f"file://{file}"):
        assert read_file(name, 7) == b"content"
    with pytest.raises(OSError, match="it has more than 0 MiB"):
        read_file(file, 6)


def test_a_file_that_cannot_be_read_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent", 10)
    with pytest.raises(OSError, match="its path is relative"):
        read_file("file://a.config", 10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a named pipe"):
        read_file(tmp_path / "pipe", 10)
    with pytest.raises(OSError, match="does not support paths of nosuch://"):
        read_file("nosuch://bucket/a.config", 10)


def test_an_object_is_read(store: RunningStore) -> None:
    store.put("config/a.config", b"content")
    store.put("config/empty.config", b"")
    assert read_file(store.uri("config/a.config"), 7) == b"content"
    assert read_file(store.uri("config/empty.config"), 7) == b""
    with pytest.raises(OSError, match="it has more than 0 MiB"):
        read_file(store.uri("config/a.config"), 6)
    store.put("config/a.config", b"changed")
    assert read_file(store.uri("config/a.config"), 7) == b"changed"


def test_an_absent_object_is_an_absent_file(store: RunningStore) -> None:
    for uri in (store.uri("config/absent.config"), f"{store.scheme}://tpuserve-no-such-bucket/a.config"):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            read_file(uri, 10)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_store_that_has_gone_away_is_an_error_with_the_reason(store: RunningStore) -> None:
    store.put("config/a.config", b"content")
    store.stop()
    try:
        with pytest.raises(OSError, match="Error: "):
            read_file(store.uri("config/a.config"), 10)
    finally:
        store.start()
    assert read_file(store.uri("config/a.config"), 10) == b"content"
