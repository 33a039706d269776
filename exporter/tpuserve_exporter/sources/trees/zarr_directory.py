"""Checkpoints with a zarr directory for each array: T5X, PaxML, big_vision, and Orbax before 0.2.

T5X and Orbax write the tree to a file `checkpoint`, whose leaves name the directories. Others have no such file, and
the name of a directory is the path in the tree: `mdl_vars.params.lm.w`, or `params~head~kernel` of big_vision.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.trees.flax_file import read_leaves
from tpuserve_exporter.sources.trees.msgpack_index import looks_like_msgpack
from tpuserve_exporter.sources.trees.stored_tree import step_in_name
from tpuserve_exporter.sources.trees.zarr_arrays import ZarrArray, find_arrays
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

TREE_FILE = "checkpoint"
# The item of a step that holds the model.
_ITEM = "state"
# Newer releases of Orbax describe the tree in this file, which sources/trees/orbax.py reads.
_OF_ORBAX = "_METADATA"
_UNFINISHED = (".tmp-", ".orbax-checkpoint-tmp")


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    from tpuserve_exporter.sources.trees.restore import open_tree

    return open_tree("zarr", ZarrTree(source), options)


def find_zarr(directory: Path) -> str | None:
    """Return the file or subdirectory by which a directory is such a checkpoint, or holds one for each step."""
    if (directory / _OF_ORBAX).is_file():
        return None
    if looks_like_msgpack(directory / TREE_FILE):
        return TREE_FILE
    if found := find_arrays(directory):
        return found[0].name
    steps = _steps(directory)
    return f"{steps[max(steps)].name}/" if steps else f"{_ITEM}/" if _holds_arrays(directory / _ITEM) else None


def _holds_arrays(directory: Path) -> bool:
    if not directory.is_dir() or (directory / _OF_ORBAX).is_file():
        return False
    return looks_like_msgpack(directory / TREE_FILE) or bool(find_arrays(directory))


def _steps(directory: Path) -> dict[int, Path]:
    finished = [
        path for path in directory.iterdir() if path.is_dir() and not any(mark in path.name for mark in _UNFINISHED)
    ]
    return {
        step: path
        for path in finished
        if (step := step_in_name(path)) is not None and (_holds_arrays(path) or _holds_arrays(path / _ITEM))
    }


class ZarrTree:
    """The arrays of a directory, or of the latest step in it."""

    def __init__(self, source: Path) -> None:
        """Read the descriptions of the arrays. Raises SourceUnreadable."""
        if not source.is_dir():
            raise SourceUnreadable(f"{source} is not a directory")
        chosen = source if _holds_arrays(source) or _holds_arrays(source / _ITEM) else self._latest(source)
        self.step = step_in_name(chosen)
        self.name = chosen.name if chosen == source else f"{source.name}/{chosen.name}"
        folder = chosen if _holds_arrays(chosen) else chosen / _ITEM
        self._readers = self._read(folder)
        self.arrays: Mapping[KeyPath, ArraySpec] = {path: spec for path, (spec, _) in self._readers.items()}

    def read(self, paths: Collection[KeyPath]) -> dict[KeyPath, Array]:
        """Return the values of these arrays. Raises SourceUnreadable if files are missing or damaged."""
        return {path: self._readers[path][1]() for path in paths}

    def _latest(self, source: Path) -> Path:
        steps = _steps(source)
        if not steps:
            raise SourceUnreadable(
                f"{source} contains no directories of zarr arrays, and no steps with such directories"
            )
        return steps[max(steps)]

    def _read(self, folder: Path) -> dict[KeyPath, tuple[ArraySpec, Callable[[], Array]]]:
        if looks_like_msgpack(folder / TREE_FILE):
            return read_leaves(folder / TREE_FILE, lambda name: folder / name)
        found = [ZarrArray.open(path) for path in find_arrays(folder)]
        separator = "~" if any("~" in one.path.name for one in found) else "."
        return {tuple(one.path.name.split(separator)): (one.spec, one.read) for one in found}
