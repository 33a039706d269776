"""Tests that `.keras` files are unpacked once, and that forged ones are refused before they fill disk or memory."""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.sources.keras.archive import read_archive

Forge = Callable[[zipfile.ZipFile], None]
WEIGHTS = "model.weights.h5"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the exporter unpacks."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def write(path: Path, forge: Forge, weights: Callable[[h5py.File], object] = lambda file: None) -> Path:
    """Write an archive that Keras would write, then forge it."""
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["layers/dense/vars/0"] = np.arange(4096.0)
        weights(file)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": []}}))
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.12.0"}))
        archive.write(path.with_suffix(".h5"), WEIGHTS)
        forge(archive)
    return path


def declare(size: int, deflate: bool = False) -> Forge:
    def forge(archive: zipfile.ZipFile) -> None:
        if deflate:
            archive.writestr("assets/terms", np.arange(50_000).tobytes(), zipfile.ZIP_DEFLATED)
        archive.infolist()[-1].file_size = size

    return forge


def add(name: str, content: bytes = b"evil") -> Forge:
    return lambda archive: archive.writestr(name, content, zipfile.ZIP_DEFLATED)


def encrypt(archive: zipfile.ZipFile) -> None:
    archive.getinfo(WEIGHTS).flag_bits |= 1


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (declare(10 << 40), "it declares 10995116277760 bytes for model.weights.h5, but holds "),
        (declare(100), "it declares 100 bytes for model.weights.h5, but holds "),
        (declare(10 << 40, deflate=True), "would have 1099511"),
        (declare(100, deflate=True), "it is truncated or not a .keras archive"),
        (add("../evil"), "its path '../evil' leads out of the archive"),
        (add("assets\\..\\..\\evil"), "leads out of the archive"),
        (add("/tmp/evil"), "its path '/tmp/evil' leads out of the archive"),
        (add("assets/zeros", bytes(300 << 20)), "more than 100 times as many"),
        (encrypt, "encrypted"),
    ],
    ids=["huge", "small", "huge-deflated", "small-deflated", "parent", "backslash", "root", "bomb", "encrypted"],
)
def test_a_forged_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, scratch: Path, forge: Forge, reason: str
) -> None:
    path = write(tmp_path / "forged.keras", forge)
    with pytest.raises(SourceUnreadable) as caught, read_archive(path).opened():
        raise AssertionError("the file was opened")
    assert "forged.keras" in str(caught.value)
    assert reason in str(caught.value)
    assert not list(scratch.iterdir())


def test_a_dataset_that_declares_more_than_it_holds_is_refused(tmp_path: Path, scratch: Path) -> None:
    path = write(
        tmp_path / "m.keras",
        lambda archive: None,
        lambda file: file.create_dataset("huge", (1 << 40,), np.float32, chunks=(1 << 20,), compression="gzip"),
    )
    with (
        pytest.raises(SourceUnreadable, match="forged: huge declares 4398046511104 bytes, but holds 0"),
        read_archive(path).opened(),
    ):
        raise AssertionError("the file was opened")
    assert not list(scratch.iterdir())


def test_an_archive_larger_than_the_free_disk_is_refused(tmp_path: Path, scratch: Path) -> None:
    """Use a sparse file, so that the declared size is likely for the file but not for the disk."""
    size = 2 * shutil.disk_usage(tmp_path).total
    path = tmp_path / "large.keras"
    with path.open("wb") as file:
        file.truncate(size // 50)
    write(path, declare(size, deflate=True))
    with (
        pytest.raises(SourceUnreadable, match=rf"cannot unpack large.keras: .* but {scratch} has \d+ bytes free"),
        read_archive(path).opened(),
    ):
        raise AssertionError("the file was opened")
    assert not list(scratch.iterdir())


def test_the_content_lies_in_one_directory_until_the_end(tmp_path: Path, scratch: Path) -> None:
    path = write(tmp_path / "m.keras", add("assets/layers/lookup/vocabulary.txt", b"red"))
    with read_archive(path).opened() as opened:
        assert list(opened.weights["layers/dense/vars"]) == ["0"]
        assert opened.folder is not None
        assert list(scratch.iterdir()) == [opened.folder]
        assert (opened.folder / "assets/layers/lookup/vocabulary.txt").read_bytes() == b"red"
    assert not list(scratch.iterdir())
