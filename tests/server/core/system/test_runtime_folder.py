"""Tests for the private directories of a server, and for the removal of those that killed hosts left behind."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from tpuserve_server.core.system import runtime_folder as module
from tpuserve_server.core.system.runtime_folder import RuntimeFolder, remove_stale_folders, runtime_folder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory in which this module looks for directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_SHORT", str(tmp_path))
    return tmp_path


def kill(folder: RuntimeFolder) -> None:
    """End the only process that uses a directory, without a removal."""
    os.close(folder.lock)


def test_only_this_user_can_enter_the_directory_and_it_is_removed_at_the_end() -> None:
    with runtime_folder() as folder:
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        (folder.path / "key.json").touch()
    assert not folder.path.exists()


def test_directory_in_a_deep_temporary_directory_has_a_short_path(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = parent / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with runtime_folder(max_path_bytes=len(str(deep))) as folder:
        assert folder.path.parent == parent
    assert list(deep.iterdir()) == []


def test_directory_of_a_killed_server_is_removed_with_its_key() -> None:
    folder = RuntimeFolder.create()
    (folder.path / "settings.json").write_text("a key")
    kill(folder)
    assert remove_stale_folders() == [folder.path]
    assert not folder.path.exists()


def test_directory_stays_while_any_process_holds_its_lock() -> None:
    with runtime_folder() as folder:
        inherited = os.dup(folder.lock)  # as in the serving process
        assert remove_stale_folders() == []
        kill(folder)
        assert remove_stale_folders() == []
        os.close(inherited)
        assert remove_stale_folders() == [folder.path]
        os.dup2(os.open("/dev/null", os.O_RDONLY), folder.lock)


def test_directories_of_others_stay(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = RuntimeFolder.create()
    kill(stale)
    (parent / "tpuserve-without-lock").mkdir()
    (parent / "other-program").mkdir()
    (parent / "other-program" / "lock").touch()
    (parent / "tpuserve-link").symlink_to(parent / "other-program")
    (parent / "tpuserve-linked-lock").mkdir()
    (parent / "tpuserve-linked-lock" / "lock").symlink_to(parent / "other-program" / "lock")
    (parent / "tpuserve-file").touch()
    before = sorted(parent.iterdir())
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert remove_stale_folders() == []
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    monkeypatch.setattr(module, "_SHORT", str(parent))
    assert remove_stale_folders() == [stale.path]
    assert sorted(parent.iterdir()) == [path for path in before if path != stale.path]
