"""Tests of the directories and the compiled wheels that `make install` refuses."""

import sys
from pathlib import Path

import pytest

from deploy.installation import install
from deploy.installation.install import main


def test_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file"), "tpuserve"]) == 2
    assert "is a file. Set PREFIX to another directory" in capsys.readouterr().err


def test_the_directory_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main([str(tmp_path), "tpuserve"]) == 2
    assert "is not empty, and `make install` did not make it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_name_with_a_space_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "my tools"), "tpuserve"]) == 2
    assert "has a space in its name" in capsys.readouterr().err


def test_a_compiled_server_must_be_for_this_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "COMPILED", tmp_path)
    (tmp_path / "tpuserve_server-0.1.0-cp310-cp310-manylinux_2_28_x86_64.whl").touch()
    assert main([str(tmp_path / "env"), "--compiled", "tpuserve"]) == 2
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert f"has no wheel for {python}. Type: rm -rf .compiler; make compiled" in capsys.readouterr().err
