"""Finds the files of a source, and reports those that cannot be read. Needs no framework."""

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, reason_of

# The step at the end of a name: `model.ckpt-300`.
_NUMBER = re.compile(r"[-_.]?\d+$")
# The last bytes of a table (tensorflow/core/lib/io/format.h: kTableMagicNumber).
_TABLE_MARK = bytes.fromhex("57fb808b247547db")


def find_prefix(source: Path) -> Path:
    """Return the checkpoint's path without `.index`.

    For a directory, return the checkpoint that its `checkpoint` file names if that exists, else the latest one. Raises
    SourceUnreadable.
    """
    if not source.is_dir():
        return source.with_suffix("") if source.suffix == ".index" else source
    named = _named_latest(source / "checkpoint")
    if named is not None:
        return named
    indexes = list(source.glob("*.index"))
    if not indexes:
        raise SourceUnreadable(f"{source} contains no checkpoint (*.index)")
    if len({_NUMBER.sub("", index.stem) for index in indexes}) > 1:
        names = ", ".join(sorted(index.stem for index in indexes))
        raise SourceUnreadable(
            f"{source} contains several checkpoints that are not steps of one training: {names}. Name one, such as "
            f"{min(indexes).with_suffix('')}"
        )
    return max(indexes, key=_age).with_suffix("")


def is_torch_archive(path: Path) -> bool:
    """Return whether `torch.save` wrote the file. Names such as `pytorch_model.bin` and `last.ckpt` do not show it."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def find_variables(saved_model: Path) -> Path | None:
    """Return the prefix of a SavedModel's variables, or None if the SavedModel has no variable files."""
    prefix = saved_model / "variables" / "variables"
    return prefix if prefix.with_name(f"{prefix.name}.index").is_file() else None


def _named_latest(state_file: Path) -> Path | None:
    """Return the path of the latest checkpoint by the `checkpoint` file, or None.

    The checkpoint must be in the same directory. The file's own path may be old, because users move directories.
    """
    if not state_file.is_file():
        return None
    found = re.search(r'^model_checkpoint_path:\s*"(.*)"', state_file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        return None
    prefix = state_file.with_name(Path(found[1]).name)
    return prefix if prefix.with_name(prefix.name + ".index").is_file() or is_old_checkpoint(prefix) else None


def step_of(prefix: Path) -> int | None:
    """Return the number at the end of a checkpoint's name, such as 300 for `model.ckpt-300`, or None."""
    number = re.search(r"-(\d+)$", prefix.name)
    return int(number[1]) if number else None


def _age(index: Path) -> tuple[int, float]:
    """Return a sort key: the number at the end of the name, then the modification time."""
    number = re.search(r"(\d+)$", index.stem)
    return (int(number[1]) if number else -1), index.stat().st_mtime


def is_old_checkpoint(path: Path) -> bool:
    """Return whether `path` is a checkpoint of TensorFlow before 1.0: one table with a mark at its end, no index."""
    if not path.is_file() or path.suffix == ".index" or path.stat().st_size < len(_TABLE_MARK):
        return False
    with path.open("rb") as file:
        file.seek(-len(_TABLE_MARK), 2)
        return file.read() == _TABLE_MARK


INDEX_SUFFIX = ".safetensors.index.json"


def read_index(index: Path) -> dict[str, Path]:
    """Return each tensor's file, always in the index's directory. The file may be missing. Raises SourceUnreadable."""
    try:
        file_of: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return {tensor: index.with_name(Path(file).name) for tensor, file in file_of.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnreadable(f"cannot read {index.name}, an index of safetensors: {reason_of(error)}") from error


@contextlib.contextmanager
def source_errors(source: Path) -> Iterator[None]:
    """Turn an OSError of the body into SourceUnreadable if it names the source, or a file in it or next to it."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not _belongs(Path(error.filename), source):
            raise
        raise unreadable(Path(error.filename), error) from error


def unreadable(path: Path, error: OSError) -> SourceUnreadable:
    """Return the failure for a path that cannot be read, with a hint if permissions are missing."""
    reason = error.strerror or str(error)
    hint = ". Give the exporting user permission to read it" if isinstance(error, PermissionError) else ""
    return SourceUnreadable(f"cannot read {path}: {reason}{hint}")


def _belongs(path: Path, source: Path) -> bool:
    """Return whether `path` is the source, or is in it or next to it, as the files of a checkpoint are."""
    return path == source or path.is_relative_to(source) or path.parent == source.parent
