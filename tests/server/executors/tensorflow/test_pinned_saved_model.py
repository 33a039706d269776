"""Tests for the immutable copy of a graph, and for the directory around it."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.support import v1_models
from tests.support.saved_models import as_text, save_half_plus_two
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, NotFound
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor, TensorFlowServable
from tpuserve_server.executors.tensorflow.pinned_saved_model import PinnedSavedModel


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that contains all private directories."""
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    return tmp_path / "private"


def load(path: Path) -> TensorFlowServable:
    return TensorFlowExecutor(TensorFlowOptions()).load(ServableId("m", 1), VersionFiles(path))


def test_the_directory_has_the_graph_and_the_versions_files(tmp_path: Path, private: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    content = (path / "saved_model.pb").read_bytes()
    with contextlib.closing(PinnedSavedModel(path)) as files:
        assert files.graph == content == (files.path / "saved_model.pb").read_bytes()
        assert sorted(os.listdir(files.path / "variables")) == sorted(os.listdir(path / "variables"))
        assert files.path.stat().st_mode & 0o777 == 0o700
    assert list(private.iterdir()) == []


def test_a_text_becomes_a_binary_file(tmp_path: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    with contextlib.closing(PinnedSavedModel(as_text(path))) as files:
        assert SavedModel.FromString((files.path / "saved_model.pb").read_bytes()) == model
        assert not (files.path / "saved_model.pbtxt").exists()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory exist on Linux")
def test_the_copy_cannot_be_written(tmp_path: Path) -> None:
    with contextlib.closing(PinnedSavedModel(save_half_plus_two(tmp_path / "1"))) as files:
        copy = os.open(files.path / "saved_model.pb", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(copy, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(copy, 0)
        os.close(copy)


def test_without_files_in_memory_the_copy_is_in_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_half_plus_two(tmp_path / "1")
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with contextlib.closing(PinnedSavedModel(path)) as files:
        assert not (files.path / "saved_model.pb").is_symlink()
        assert files.graph == (path / "saved_model.pb").read_bytes() == (files.path / "saved_model.pb").read_bytes()


@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_a_file_of_any_size_is_not_read(tmp_path: Path, private: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(InvalidArgument, match=f"{name} has 8796093022208 bytes; the limit is "):
        PinnedSavedModel(tmp_path)
    assert list(private.iterdir()) == []


def test_a_version_with_assets_keeps_the_directory_until_its_end(tmp_path: Path, private: Path) -> None:
    path = v1_models.save_vocabulary(tmp_path / "1", tmp_path, legacy=False)
    servable = load(path)
    [kept] = private.iterdir()
    assert os.listdir(kept / "assets") == os.listdir(path / "assets")
    assert not (kept / "saved_model.pb").exists()
    servable.close()
    assert list(private.iterdir()) == []


def test_a_version_without_assets_keeps_nothing(tmp_path: Path, private: Path) -> None:
    servable = load(save_half_plus_two(tmp_path / "1"))
    assert list(private.iterdir()) == []
    servable.close()


def test_a_failed_load_keeps_nothing_and_names_no_private_path(tmp_path: Path, private: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    (path / "variables" / "variables.data-00000-of-00001").unlink()
    with pytest.raises(Exception, match=r"^TensorFlow cannot load the SavedModel: .*the version directory") as damaged:
        load(path)
    (tmp_path / "2").mkdir()
    with pytest.raises(NotFound, match=r"Could not find SavedModel \.pb.*: the version directory") as missing:
        load(tmp_path / "2")
    assert str(private) not in f"{damaged.value} {missing.value}"
    assert list(private.iterdir()) == []


def test_without_a_temporary_directory_the_load_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_half_plus_two(tmp_path / "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(
        FailedPrecondition, match=r": the server cannot make a private copy of it: No such file"
    ) as raised:
        load(path)
    assert str(tmp_path) not in str(raised.value)
