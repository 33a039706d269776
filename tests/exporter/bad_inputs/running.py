"""Runs a case in this process like a command in a separate process, and checks what every case must leave."""

import contextlib
import importlib
import io
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from tests.exporter.bad_inputs.case import Case
from tpuserve_exporter.command.exporting import main

# An absolute path that is not part of a URL or of a longer path.
_ABSOLUTE = re.compile(r"(?<![\w.:/<>])/[\w.-]+/[\w./-]*")


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command: its exit code and both output streams, including output of native libraries.

    `faults` are effects that no failed export may have: files left behind, a traceback or a path of this machine.
    """

    code: int
    out: str
    err: str
    faults: tuple[str, ...] = ()


def run(case: Case, sources: Path, folder: Path) -> Output:
    """Copy `sources` to `folder`, apply the case's change and run the command there."""
    shutil.copytree(sources, folder, dirs_exist_ok=True, symlinks=True)
    case.change(folder)
    before = _tree(folder)
    with tempfile.TemporaryDirectory() as temporary, _in_folder(folder, Path(temporary)):
        with _without(case.without), _files_of_at_most(case.file_size_bytes):
            message = _run(shlex.split(case.command))
        left = [*sorted(_tree(folder).items() ^ before.items()), *_temporaries(Path(temporary))]
    faults = [f"left behind: {one}" for one in left] + list(_find_faults(message, case))
    return replace(message, faults=tuple(faults))


def _find_faults(message: Output, case: Case) -> Iterator[str]:
    shown = message.out + message.err
    if "Traceback" in shown:
        yield "a traceback"
    yield from (f"a path of this machine: {path}" for path in _ABSOLUTE.findall(shown) if path not in case.command)


def _tree(folder: Path) -> dict[str, int]:
    """Return the size of every path below `folder`, except bytecode of the user's module."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.lstat().st_size if path.is_file() else 0 for path in paths}


def _temporaries(folder: Path) -> list[str]:
    """Return every path below `folder`, except AutoGraph's.

    TensorFlow deletes AutoGraph's sources at exit, but not their bytecode.
    """
    paths = (path for path in folder.rglob("*") if path.name != "__pycache__")
    return [path.name for path in paths if not path.name.startswith("__autograph_generated_file")]


def _run(arguments: list[str]) -> Output:
    before = signal.getsignal(signal.SIGTERM)
    with mock.patch.object(sys, "argv", ["tpuserve-export", *arguments]), _caught(1) as out, _caught(2) as err:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return Output(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _caught(descriptor: int) -> Iterator[io.StringIO]:
    """Capture all output to the descriptor, from Python and native code. The text is complete when the body ends."""
    text = io.StringIO()
    name = {1: "stdout", 2: "stderr"}[descriptor]
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile("w+") as file:
        getattr(sys, name).flush()
        os.dup2(file.fileno(), descriptor)
        try:
            with mock.patch.object(sys, name, file):
                yield text
        finally:
            file.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            text.write(file.read())


@contextlib.contextmanager
def _in_folder(folder: Path, temporary: Path) -> Iterator[None]:
    """Run the body in `folder`, with fresh imports of the modules there. Unload these modules at exit."""
    before, modules, path = Path.cwd(), set(sys.modules), list(sys.path)
    os.chdir(folder)
    try:
        with mock.patch.object(tempfile, "tempdir", str(temporary)), mock.patch.dict(os.environ, TMPDIR=str(temporary)):
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
        importlib.invalidate_caches()


@contextlib.contextmanager
def _without(packages: tuple[str, ...]) -> Iterator[None]:
    """Make these packages appear as not installed, even if they were imported before."""
    hidden = {*packages, *(name for name in sys.modules if name.partition(".")[0] in packages)}
    kept = {name: sys.modules.pop(name) for name in hidden if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None, as the import system has it
    try:
        yield
    finally:
        # Remove only these. Other modules that the body imported stay, because many cannot be imported twice.
        for name in hidden:
            del sys.modules[name]
        sys.modules.update(kept)


@contextlib.contextmanager
def _files_of_at_most(size_bytes: int | None) -> Iterator[None]:
    if size_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
