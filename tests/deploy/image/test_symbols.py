"""Tests with libraries of this environment: without symbols they load and work, and others stay unchanged."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.symbols import remove_symbols

# The only library of this environment that is small and has its symbols: 12 of 14 MB.
WITH_SYMBOLS = "uvloop.loop"


def find_library(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a copy of a package with symbols, as its library."""
    original = find_library(WITH_SYMBOLS)
    shutil.copytree(original.parent, tmp_path / original.parent.name)
    return tmp_path / original.parent.name / original.name


def test_library_without_symbols_is_smaller_and_works(library: Path) -> None:
    before = library.stat()
    saved = remove_symbols(library)
    assert saved > before.st_size / 2
    assert library.stat().st_size == before.st_size - saved
    assert library.stat().st_mode == before.st_mode
    program = f"import asyncio, uvloop; uvloop.run(asyncio.sleep(0)); print({WITH_SYMBOLS}.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(library.parents[1])}, capture_output=True, text=True
    )
    assert (ran.stdout.strip(), ran.stderr) == (str(library), "")


def test_library_is_changed_once(library: Path) -> None:
    remove_symbols(library)
    content = library.read_bytes()
    assert remove_symbols(library) == 0
    assert library.read_bytes() == content


def test_hard_link_keeps_its_content(library: Path, tmp_path: Path) -> None:
    linked = tmp_path / "cached"
    os.link(library, linked)
    content = linked.read_bytes()
    assert remove_symbols(library) > 0
    assert linked.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + bytes(100)])
def test_file_of_another_format_stays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert remove_symbols(path) == 0
    assert path.read_bytes() == content


def test_library_that_has_no_symbols_stays(tmp_path: Path) -> None:
    path = Path(shutil.copy(find_library("numpy._core._multiarray_umath"), tmp_path))
    content = path.read_bytes()
    assert remove_symbols(path) == 0
    assert path.read_bytes() == content
