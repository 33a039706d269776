"""Tests for the permissions of files with secrets."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.optional import cannot_run
from tpuserve_server.startup.file_checks import describe_exposure


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tls.config"
    path.write_text("server_key")
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o440])
def test_file_of_this_user_and_its_group_is_fine(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert describe_exposure(file) == ""


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o644, "Other users can read the secret in '{file}' (mode 0644). Run: chmod o= '{file}'"),
        (0o660, "Other users can replace '{file}' (mode 0660). Run: chmod go-w '{file}'"),
        (0o602, "Other users can replace '{file}' (mode 0602). Run: chmod go-w '{file}'"),
    ],
)
def test_file_that_others_can_reach_is_reported(file: Path, mode: int, said: str) -> None:
    file.chmod(mode)
    assert describe_exposure(file) == said.format(file=file)


def test_file_without_a_secret_may_be_read_but_not_replaced(file: Path) -> None:
    file.chmod(0o644)
    assert describe_exposure(file, is_secret=False) == ""
    file.chmod(0o664)
    assert "can replace" in describe_exposure(file, is_secret=False)


def test_target_of_a_link_counts(file: Path) -> None:
    file.chmod(0o644)
    link = file.with_name("..data")
    link.symlink_to(file)
    assert "mode 0644" in describe_exposure(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_reported(file: Path) -> None:
    file.chmod(0o600)
    os.chown(file, 12345, -1)
    assert "belongs to another user (uid 12345), who can replace it" in describe_exposure(file)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system in memory as Kubernetes mounts a Secret: read-only, with files of mode 0644."""
    folder = tmp_path / "secret"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False).returncode:
        cannot_run("needs the right to mount a file system")
    try:
        (folder / "tls.config").write_text("server_key")
        (folder / "tls.config").chmod(0o644)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder / "tls.config"
    finally:
        subprocess.run(["umount", folder], check=True)


def test_secret_as_kubernetes_mounts_it_is_fine(read_only: Path) -> None:
    assert describe_exposure(read_only) == ""
