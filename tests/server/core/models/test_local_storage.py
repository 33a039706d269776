"""Tests for versions on a real file system."""

import os
from pathlib import Path

import pytest

from tpuserve_server.core.models.local_storage import LocalStorage
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
