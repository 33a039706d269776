"""Tests for configuration files that are not text files."""

import os
from pathlib import Path

import pytest

from tpuserve_server.startup.text_format import ConfigError, read_text


def test_line_ends_of_other_systems_are_line_ends(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "config") == "a\nb\nc\n"


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"^Cannot read '.*pipe': it is a named pipe\. Use a regular file$"):
        read_text(tmp_path / "pipe")


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    with pytest.raises(ConfigError, match=r"large': it has more than 64 MiB$"):
        read_text(tmp_path / "large")


def test_an_error_names_the_file_as_the_caller_shows_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"^Cannot read 'shown': not UTF-8 text \(byte 2\)$"):
        read_text(tmp_path / "config", Path("shown"))
