import shutil
from pathlib import Path

import pytest

from deploy.image.slim import main
from tests.deploy.image.test_symbols import WITH_SYMBOLS, find_library


def write(path: Path, size_bytes: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    return path


def test_unused_files_and_symbols_are_removed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages = tmp_path / "lib/python3.11/site-packages"
    removed = [
        write(packages / "tensorflow/include/core/graph.h", 2_000_000),
        write(packages / "numpy/linalg/tests/test_linalg.py"),
        write(packages / "jaxlib/libxla.a"),
        write(tmp_path / ".lock"),
    ]
    kept = [
        write(packages / "tensorflow/__init__.py"),
        write(packages / "numpy/testing/tests.py"),
        write(packages / "google/tests/__init__.py"),
    ]
    library = packages / "uvloop/loop.so"
    library.parent.mkdir()
    shutil.copy(find_library(WITH_SYMBOLS), library)
    before_bytes = library.stat().st_size
    main(tmp_path)
    assert not any(path.exists() for path in removed)
    assert all(path.exists() for path in kept)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Removed 2.0 MB: tensorflow/include"
    assert printed[-1] == f"Removed {(before_bytes - library.stat().st_size) / 1e6:.1f} MB: symbol tables"
