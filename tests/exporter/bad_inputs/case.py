"""A bad input: a valid source, a change that breaks it, and the command that a user then runs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Change = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """Change nothing: the command is wrong, not the sources."""


@dataclass(frozen=True, slots=True)
class Case:
    """A bad input and the exit code of its export.

    `title` names the fault. `command` follows `tpuserve export` and runs in the directory that `change` changed. The
    packages in `without` appear as not installed. Files are limited to `file_size_bytes`.
    """

    title: str
    code: int
    command: str
    change: Change = nothing
    without: tuple[str, ...] = ()
    file_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """The cases of one kind of source.

    `make` writes the sources and their `models.py` to a directory. It needs `packages`.
    """

    title: str
    intro: str
    make: Change
    cases: tuple[Case, ...]
    packages: tuple[str, ...] = ()


def remove(pattern: str) -> Change:
    """Return a change that removes the files that match the pattern."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            path.unlink()

    return change


def cut(pattern: str, size_bytes: int) -> Change:
    """Return a change that truncates the files that match the pattern, like an interrupted copy."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            content = path.read_bytes()
            assert len(content) > size_bytes
            path.write_bytes(content[:size_bytes])

    return change


def fill(pattern: str, content: bytes = b"not what it should be\n" * 40) -> Change:
    """Return a change that overwrites the files that match the pattern."""

    def change(folder: Path) -> None:
        for path in found(folder, pattern):
            path.write_bytes(content)

    return change


def write(name: str, content: bytes | str = b"") -> Change:
    """Return a change that writes a file and makes its parent directories."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def found(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match the pattern. There must be at least one."""
    paths = sorted(folder.glob(pattern))
    assert paths, f"nothing in {folder} is called {pattern}"
    return paths
