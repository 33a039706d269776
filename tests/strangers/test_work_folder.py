"""Only one run at a time can use a directory."""

from pathlib import Path

import pytest

from tests.strangers.__main__ import main
from tests.strangers.work_folder import InUse, hold


def test_a_folder_in_use_is_refused_until_it_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with hold(folder), pytest.raises(InUse, match="Another run uses"), hold(folder):
        pass
    with hold(folder):
        pass


def test_a_second_run_ends_before_it_removes_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "0" / "source"
    kept.mkdir(parents=True)
    with hold(tmp_path):
        assert main(["--work", str(tmp_path), "--only", "linen_conv"]) == 2
    assert kept.exists()
    assert f"Another run uses {tmp_path}." in capsys.readouterr().err
