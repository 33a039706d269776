"""What a bad input is made of: a source that was fine, what is done to it, and the command that a user then types."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Change = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """Leaves the sources as they were made: it is the command that is wrong."""


@dataclass(frozen=True, slots=True)
class Case:
    """`title` says what is wrong. `command` follows `tpuserve export`, typed in the folder that `change` changed.

    `without` are packages that are not installed then; no file can be longer than `file_size_bytes`.
    """

    title: str
    code: int
    command: str
    change: Change = nothing
    without: tuple[str, ...] = ()
    file_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Cases of one kind of source, which `make` leaves in a folder: the sources, and their `models.py`.

    `packages` have to be there for all of that.
    """

    title: str
    intro: str
    make: Change
    cases: tuple[Case, ...]
    packages: tuple[str, ...] = ()


def remove(pattern: str) -> Change:
    """Takes the files away that the pattern finds."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            path.unlink()

    return change


def cut(pattern: str, size_bytes: int) -> Change:
    """Leaves the first bytes of the files that the pattern finds, as a copy that broke off does."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            content = path.read_bytes()
            assert len(content) > size_bytes
            path.write_bytes(content[:size_bytes])

    return change


def fill(pattern: str, content: bytes = b"not what it should be\n" * 40) -> Change:
    """Puts other content into the files that the pattern finds."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            path.write_bytes(content)

    return change


def write(name: str, content: bytes | str = b"") -> Change:
    """Makes a file, and the folders to it."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def found(folder: Path, pattern: str) -> list[Path]:
    """What the pattern finds, which is to be something."""
    paths = sorted(folder.glob(pattern))
    assert paths, f"nothing in {folder} is called {pattern}"
    return paths
