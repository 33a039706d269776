"""Tests for the changes of clients that survive the process."""

import logging
from pathlib import Path

import pytest

from tpuserve_server.core.models.change_record import ChangeRecord, Changes


def test_changes_survive_with_the_text_that_they_change(tmp_path: Path) -> None:
    record = ChangeRecord(tmp_path)
    assert record.read("first") == Changes()
    record.write(b"\x00\xff", ["a", "b"])
    assert ChangeRecord(tmp_path).read("first") == Changes(b"\x00\xff", ("a", "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["changes.json"]


def test_a_newer_text_of_the_operator_replaces_the_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = ChangeRecord(tmp_path)
    record.read("first")
    record.write(None, ["a"])
    assert ChangeRecord(tmp_path).read("second") == Changes()
    assert "newer than the last reload" in caplog.text


def test_changes_belong_to_the_text_that_the_process_has_applied(tmp_path: Path) -> None:
    record = ChangeRecord(tmp_path)
    record.read("first")
    record.rebase("second")
    record.write(b"a reload", [])
    assert ChangeRecord(tmp_path).read("second") == Changes(b"a reload")


def test_a_record_that_cannot_be_written_is_logged_and_fails_no_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = ChangeRecord(tmp_path / "gone")
    record.read("")
    with caplog.at_level(logging.ERROR):
        record.write(b"a reload", [])
    assert "A new process would start without it" in caplog.text
