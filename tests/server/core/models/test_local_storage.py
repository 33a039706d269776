"""Tests for versions on a real file system."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuserve_server.core.models.local_storage import MAX_DEPTH, LocalStorage, VersionTree
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.storage import VersionLocation, index_versions

STORAGE = LocalStorage(lambda path: None)


@pytest.mark.parametrize(
    ("names", "versions"),
    [
        (["1", "007", "-2", "+3"], {1: ("1",), 7: ("007",), -2: ("-2",), 3: ("+3",)}),
        (["1", "01", "001"], {1: ("001", "01", "1")}),
        (
            [str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1)],
            {2**63 - 1: ("9223372036854775807",), -(2**63): ("-9223372036854775808",)},
        ),
        (["", "-", "1.0", "1a", "0x1", "1_000", "\u0661", "tmp", "9" * 10_000], {}),
    ],
)
def test_any_int64_is_a_version_and_nothing_else(names: list[str], versions: dict[int, tuple[str, ...]]) -> None:
    assert index_versions(names) == versions


def test_versions_are_folders(tmp_path: Path) -> None:
    (tmp_path / "01").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "2").write_text("a file")
    assert STORAGE.find_versions(str(tmp_path)) == {1: VersionLocation(str(tmp_path / "1"), ("01",))}
    assert STORAGE.find_versions(str(tmp_path / "2")) is None
    assert STORAGE.find_versions(str(tmp_path / "absent")) is None


def test_a_version_is_loaded_from_where_it_lies(tmp_path: Path) -> None:
    path = STORAGE.fetch(VersionLocation(str(tmp_path)))
    STORAGE.release(path)
    assert path == tmp_path
    assert path.exists()


def test_the_fingerprint_sees_every_change(tmp_path: Path) -> None:
    location = VersionLocation(str(tmp_path))
    (tmp_path / "saved_model.pb").write_text("model")
    seen = {STORAGE.fingerprint(location)}
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "a").write_text("1")
    seen.add(STORAGE.fingerprint(location))
    (tmp_path / "variables" / "a").write_text("12")
    seen.add(STORAGE.fingerprint(location))
    (tmp_path / "variables" / "a").rename(tmp_path / "variables" / "b")
    seen.add(STORAGE.fingerprint(location))
    assert len(seen) == 4


@pytest.mark.parametrize("target", ["/etc/hostname", "../../secret", "/"])
def test_a_version_with_a_link_out_of_the_model_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "secret").write_text("s")
    version = tmp_path / "m" / "1"
    (version / "variables").mkdir(parents=True)
    (version / "variables" / "linked").symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(FailedPrecondition, match=r"variables/linked is a link to a file outside") as caught:
        STORAGE.fetch(VersionLocation(str(version)))
    assert "secret" not in caught.value.message


def test_a_version_with_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "circle").symlink_to("circle")
    with pytest.raises(FailedPrecondition, match=r"^circle is a link that cannot be followed"):
        STORAGE.fetch(VersionLocation(str(tmp_path / "1")))


def test_an_entry_that_cannot_be_followed_hides_no_version(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").symlink_to("2")
    (tmp_path / "3").symlink_to("absent")
    (tmp_path / "notes").symlink_to("notes")
    os.mkfifo(tmp_path / "4")
    found = STORAGE.find_versions(str(tmp_path))
    assert found is not None
    assert sorted(found) == [1, 2]
    assert STORAGE.refusal(found[1]) == ""
    assert STORAGE.refusal(found[2]) == "the version directory cannot be read: Too many levels of symbolic links"


def test_a_link_whose_name_is_not_utf8_is_named_in_utf8(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    os.symlink(b"/etc", os.fsencode(tmp_path / "m" / "1") + b"/\xff")
    with pytest.raises(FailedPrecondition, match=r"^\\udcff is a link to a file outside"):
        STORAGE.fetch(VersionLocation(str(tmp_path / "m" / "1")))


def test_links_within_the_base_path_and_a_linked_version_folder_are_followed(tmp_path: Path) -> None:
    data = tmp_path / "m" / "..data"
    data.mkdir(parents=True)
    (data / "saved_model.pb").write_bytes(b"x")
    (tmp_path / "m" / "1").mkdir()
    (tmp_path / "m" / "1" / "saved_model.pb").symlink_to("../..data/saved_model.pb")
    elsewhere = tmp_path / "releases" / "2"
    elsewhere.mkdir(parents=True)
    (elsewhere / "saved_model.pb").write_bytes(b"x")
    (elsewhere / "again").symlink_to("saved_model.pb")
    (tmp_path / "m" / "2").symlink_to(elsewhere)
    for version in ("1", "2"):
        path = tmp_path / "m" / version
        assert STORAGE.fetch(VersionLocation(str(path))) == path


def test_a_base_path_that_goes_away_while_it_is_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "m"
    (tmp_path / "elsewhere").mkdir()
    base.mkdir()
    (base / "1").symlink_to(tmp_path / "elsewhere")
    listed = os.scandir

    def list_and_lose(path: Path) -> object:
        entries = listed(path)
        base.rename(tmp_path / "away")
        (tmp_path / "elsewhere").rmdir()
        return entries

    monkeypatch.setattr(os, "scandir", list_and_lose)
    assert STORAGE.find_versions(str(base)) is None


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
