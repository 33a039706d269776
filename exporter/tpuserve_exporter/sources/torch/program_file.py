"""`.pt2` files: saved programs of torch.export, loaded without running their code.

torch.export.load trusts a file. It unpickles parts of it, evaluates its expressions, and calls functions of torch that
its graph names. This module first checks the file, and refuses it if it holds more than a graph of tensor operations.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

from tpuserve_exporter.errors import SourceUnreadable, UnsafeSource, reason_of
from tpuserve_exporter.models.frameworks import quiet
from tpuserve_exporter.sources.torch.program_content import unsafe_parts
from tpuserve_formats.counted import counted


def read_program(path: Path, unsafe: bool) -> ExportedProgram:
    """Load a program. Raises SourceUnreadable, and UnsafeSource for a file that could run code, unless `unsafe`."""
    try:
        if not unsafe:
            _check_safe(path)
        with quiet():
            return _load(path)
    except UnsafeSource:
        raise
    except Exception as error:  # torch and zipfile raise many kinds of errors for damaged files
        reason = reason_of(error).replace(str(path), path.name).rstrip(". ")
        raise SourceUnreadable(
            f"cannot read {path.name} as a file of torch.export.save: {reason}. The file must be complete, saved by "
            f"torch {_release(torch.__version__)} or earlier, with its tensors on the CPU"
        ) from error


def _load(path: Path) -> ExportedProgram:
    """Load the file as torch.export.load does, but use its fallback only for old files. The fallback hides errors."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if not any(name.endswith("/archive_version") for name in names):
        return torch.export.load(path)
    programs = load_pt2(str(path)).exported_programs
    if len(programs) != 1:
        raise ValueError(f"it contains {counted(len(programs), 'program')} instead of one")
    return next(iter(programs.values()))


def _release(version: str) -> str:
    return version.partition("+")[0]


def _check_safe(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        found = sorted({*unsafe_parts(archive), *_unsafe_pickles(archive)})
    if found:
        raise UnsafeSource(
            f"{path.name} contains more than a graph of tensor operations ({', '.join(found[:5])}). Reading it could "
            "run code from the file, with all your rights. Save it again with torch.export.save from a model of "
            "plain tensors, or use --unsafe if you trust the file's author",
            parts=found,
        )


def _unsafe_pickles(archive: zipfile.ZipFile) -> Iterator[str]:
    for name in archive.namelist():
        if name.lower().endswith(".pt"):
            yield from _unsafe_pickle(name, archive.read(name))


def _unsafe_pickle(name: str, content: bytes) -> Iterator[str]:
    """Yield the unsafe parts of tensors in torch's format. torch.export.load may unpickle them without restrictions."""
    try:
        yield from torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)) if content else ()
    except Exception:  # another format, which this module cannot check
        yield f"{Path(name).name}, a pickle"
