"""Running a case in this process as its command would run in one of its own, and what is to be true of all of them."""

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

# A path that begins with a slash, and is no part of a web address or of a longer path.
_ABSOLUTE = re.compile(r"(?<![\w.:/<>])/[\w.-]+/[\w./-]*")


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended: its exit code, and what came on either stream, of libraries in other languages too.

    `faults` is what no failed export may do: leave something behind, show a traceback or a path of this machine.
    """

    code: int
    out: str
    err: str
    faults: tuple[str, ...] = ()


def run(case: Case, sources: Path, folder: Path) -> Said:
    """Do to a copy of `sources` in `folder` what the case does, and run the command there."""
    shutil.copytree(sources, folder, dirs_exist_ok=True, symlinks=True)
    case.change(folder)
    before = _tree(folder)
    with tempfile.TemporaryDirectory() as temporary, _in_folder(folder, Path(temporary)):
        with _without(case.without), _files_of_at_most(case.file_size_bytes):
            said = _run(shlex.split(case.command))
        left = [*sorted(_tree(folder).items() ^ before.items()), *_temporaries(Path(temporary))]
    faults = [f"left behind: {one}" for one in left] + list(_find_faults(said, case))
    return replace(said, faults=tuple(faults))


def _find_faults(said: Said, case: Case) -> Iterator[str]:
    shown = said.out + said.err
    if "Traceback" in shown:
        yield "a traceback"
    yield from (f"a path of this machine: {path}" for path in _ABSOLUTE.findall(shown) if path not in case.command)


def _tree(folder: Path) -> dict[str, int]:
    """Every path below, with its size; bytecode of the user's module apart."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.lstat().st_size if path.is_file() else 0 for path in paths}


def _temporaries(folder: Path) -> list[str]:
    """Every path below, except AutoGraph's: TensorFlow deletes its sources at exit, and never their bytecode."""
    paths = (path for path in folder.rglob("*") if path.name != "__pycache__")
    return [path.name for path in paths if not path.name.startswith("__autograph_generated_file")]


def _run(arguments: list[str]) -> Said:
    before = signal.getsignal(signal.SIGTERM)
    with mock.patch.object(sys, "argv", ["tpuserve-export", *arguments]), _caught(1) as out, _caught(2) as err:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return Said(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _caught(descriptor: int) -> Iterator[io.StringIO]:
    """What is written to the descriptor, by Python or not, when the body has ended."""
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
    """Work there, as a process that was started there: its modules are imported anew, and forgotten."""
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
    """As if these were not installed, whatever of them has been imported before."""
    hidden = {*packages, *(name for name in sys.modules if name.partition(".")[0] in packages)}
    kept = {name: sys.modules.pop(name) for name in hidden if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None, as the import system has it
    try:
        yield
    finally:
        # These alone: what else was imported meanwhile stays, as much cannot be imported twice.
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
