"""Tests for the refusal of version directories whose files could block the server or lead it elsewhere."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuserve_server.core.models.version_tree import MAX_DEPTH, VersionTree


def make_version(base: Path) -> Path:
    version = base / "m" / "1"
    (version / "variables").mkdir(parents=True)
    (version / "saved_model.pb").write_text("graph")
    (version / "variables" / "variables.index").write_text("index")
    return version


def make_pipe(version: Path) -> None:
    (version / "saved_model.pb").unlink()
    os.mkfifo(version / "saved_model.pb")


def make_linked_pipe(version: Path) -> None:
    os.mkfifo(version.parent / "pipe")
    (version / "labels.txt").symlink_to("../pipe")


def make_pipe_in_linked_folder(version: Path) -> None:
    (version.parent / "..data").mkdir()
    os.mkfifo(version.parent / "..data" / "pipe")
    (version / "assets").symlink_to("../..data")


def make_socket(version: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as short:
        # The path of a socket has at most 108 bytes.
        listener.bind(f"{short}/s")
        os.rename(f"{short}/s", version / "variables" / "s")


def make_device(version: Path) -> None:
    try:
        os.mknod(version / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root may create a device")


def make_circle(version: Path) -> None:
    (version / "circle").symlink_to("circle")


def make_folder_circle(version: Path) -> None:
    (version / "variables" / "up").symlink_to("..")


def make_base_path_circle(version: Path) -> None:
    (version / "all").symlink_to("../../m")


def make_link_out(version: Path) -> None:
    (version / "variables" / "out").symlink_to("/etc/hostname")


def make_deep(version: Path) -> None:
    version.joinpath(*["d"] * (MAX_DEPTH + 1)).mkdir(parents=True)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (make_pipe, "saved_model.pb is a named pipe. A version may contain only regular files and directories"),
        (make_linked_pipe, "labels.txt is a named pipe. A version may contain only regular files and directories"),
        (
            make_pipe_in_linked_folder,
            "assets/pipe is a named pipe. A version may contain only regular files and direct",
        ),
        (make_socket, "variables/s is a socket. A version may contain only regular files and directories"),
        (make_device, "zero is a device. A version may contain only regular files and directories"),
        (make_circle, "circle is a link that cannot be followed: Too many levels of symbolic links"),
        (make_folder_circle, "variables/up is a link to a directory that contains it"),
        (make_base_path_circle, "all/1 is a link to a directory that contains it"),
        (make_link_out, "variables/out is a link to a file outside the model's base path. Put the file inside it"),
        (make_deep, f"{'/'.join(['d'] * (MAX_DEPTH + 1))} is nested in more than {MAX_DEPTH} directories"),
    ],
)
def test_files_that_a_version_may_not_contain(tmp_path: Path, change: Callable[[Path], None], refusal: str) -> None:
    version = make_version(tmp_path)
    before = VersionTree.read(version)
    change(version)
    tree = VersionTree.read(version)
    assert before.refusal == ""
    assert tree.refusal.startswith(refusal)
    assert str(tmp_path) not in tree.refusal
    assert tree.fingerprint != before.fingerprint


def test_links_that_multiply_the_files_end_at_the_limit(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    for level in range(20):
        folder = tmp_path / "m" / f"level{level}"
        folder.mkdir()
        for name in "abcd":
            (folder / name).symlink_to(f"../level{level + 1}")
    (version / "top").symlink_to("../level0")
    tree = VersionTree.read(version)
    assert tree.refusal == "the version directory has more than 10000 files and directories"


def test_a_folder_with_too_many_files_is_not_read_to_its_end(tmp_path: Path) -> None:
    version = make_version(tmp_path)
    for index in range(10_050):
        (version / "variables" / str(index)).touch()
    tree = VersionTree.read(version)
    assert tree.refusal == "the version directory has more than 10000 files and directories"
    assert len(tree.names) <= 10_001


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    version = make_version(tmp_path)
    os.truncate(version / "saved_model.pb", 10 * 2**40)
    assert VersionTree.read(version).refusal == ""


def test_an_absent_version_is_refused_without_its_path(tmp_path: Path) -> None:
    tree = VersionTree.read(tmp_path / "absent")
    assert tree.refusal == "the version directory cannot be read: No such file or directory"


def test_a_broken_link_within_the_base_path_counts_as_itself(tmp_path: Path) -> None:
    version = make_version(tmp_path)
    (version / "later").symlink_to("../..data/later")
    tree = VersionTree.read(version)
    assert (tree.refusal, tree.names) == ("", ("later", "saved_model.pb", "variables/variables.index"))


def test_files_of_linked_folders_belong_to_the_version(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    data = tmp_path / "m" / "..data" / "variables"
    data.mkdir(parents=True)
    (data / "variables.index").write_text("index")
    (version / "variables").symlink_to("../..data/variables")
    before = VersionTree.read(version)
    (data / "variables.index").write_text("another index")
    assert before.names == ("variables/variables.index",)
    assert before.refusal == ""
    assert VersionTree.read(version).fingerprint != before.fingerprint
