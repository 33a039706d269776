"""Tests for the release of library pages, on mappings of this process. They use a file with a mapping of code."""

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpuserve_server.core.system.memory import release_library_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="smaps is Linux's")

PAGES = 16
SIZE_BYTES = PAGES * mmap.PAGESIZE
READ_ONLY, WRITABLE, CODE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC


@contextmanager
def mapped(path: Path, protection: int) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, protection) as mapping:
        assert mapping[0] == ord("x")  # This maps pages.
        yield mapping


def resident_kb(path: Path, access: str) -> int:
    """Return the resident memory of the file's mappings with this access, such as `r--`."""
    pattern = rf"^\S+ {access}p .* {re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss: +(\d+) kB"
    return sum(map(int, re.findall(pattern, Path("/proc/self/smaps").read_text(), re.MULTILINE)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(b"x" * SIZE_BYTES)
    return path


def test_code_and_constants_leave_and_come_back(file: Path) -> None:
    with mapped(file, CODE) as code, mapped(file, READ_ONLY) as constants:
        assert resident_kb(file, "r-x") > 0
        assert resident_kb(file, "r--") > 0
        release_library_pages()
        assert resident_kb(file, "r-x") == resident_kb(file, "r--") == 0
        assert code[:] == constants[:] == b"x" * SIZE_BYTES


def test_what_the_process_wrote_stays_also_if_it_is_read_only_since(file: Path) -> None:
    with mapped(file, CODE), mapped(file, WRITABLE) as data, mapped(file, WRITABLE) as relocated:
        data[0] = relocated[0] = ord("y")
        protect(relocated, READ_ONLY)
        release_library_pages()
        assert data[:2] == relocated[:2] == b"yx"
        protect(relocated, WRITABLE)  # So that it can be closed.


def test_other_files_stay_mapped(file: Path) -> None:
    with mapped(file, READ_ONLY) as weights:
        before_kb = resident_kb(file, "r--")
        release_library_pages()
        assert resident_kb(file, "r--") == before_kb > 0
        assert weights[-1] == ord("x")


def protect(mapping: mmap.mmap, protection: int) -> None:
    # A writable view is the only way to the address.
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), len(mapping), protection) == 0
