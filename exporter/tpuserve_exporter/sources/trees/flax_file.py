"""Trees of Flax' MessagePack files: `flax.serialization.to_bytes`, `checkpoint_100` of `save_checkpoint`, and T5X.

A leaf of the tree may refer to an array in a zarr directory: T5X and old releases of Orbax write the tree into a file
`checkpoint` next to such directories, and Flax writes arrays of several processes into `checkpoint_100_gda`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.trees.msgpack_index import Damaged, MsgpackFile, MsgpackIndex, looks_like_msgpack
from tpuserve_exporter.sources.trees.stored_tree import step_in_name
from tpuserve_exporter.sources.trees.zarr_arrays import ZarrArray
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

SUFFIX = ".msgpack"
# A list of the shards of a large model, as Hugging Face's `transformers` writes it.
_INDEX_SUFFIX = ".msgpack.index.json"
_LEGACY = re.compile(r".*_\d+")
# Texts in place of an array, before the name of its directory.
_PLACEHOLDER = "PLACEHOLDER://"
_OF_PROCESSES = "//GDAPlaceholder:"
_TARGET = ("optimizer", "target")
_AGAIN = "Copy the file again, or export an earlier checkpoint"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    from tpuserve_exporter.sources.trees.restore import open_tree

    return open_tree("flax", FlaxTree(source), options)


def find_flax(directory: Path) -> str | None:
    """Return the name of a file by which a directory is one of Flax: `*.msgpack`, or the latest `checkpoint_100`."""
    found = find_files(directory)
    return found[-1].name if found else None


def find_files(directory: Path) -> list[Path]:
    """Return the files of a directory that Flax wrote, the latest step last. An index of shards is the only one."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    if indexes := [path for path in files if path.name.endswith(_INDEX_SUFFIX)]:
        return indexes
    named = [path for path in files if path.suffix == SUFFIX]
    legacy = [path for path in files if _LEGACY.fullmatch(path.name) and looks_like_msgpack(path)]
    return named or sorted(legacy, key=lambda path: step_in_name(path) or 0)


def is_flax(file: Path) -> bool:
    return file.suffix == SUFFIX or file.name.endswith(_INDEX_SUFFIX) or looks_like_msgpack(file)


class FlaxTree:
    """The tree of a file, of its shards, or of the latest file in a directory."""

    def __init__(self, source: Path) -> None:
        """Read the index of each file. Raises SourceUnreadable."""
        file = _choose(source) if source.is_dir() else source
        self.name = file.name if file == source else f"{source.name}/{file.name}"
        self.step = step_in_name(file) if _LEGACY.fullmatch(file.name) else None
        shards = _list_shards(file) if file.name.endswith(_INDEX_SUFFIX) else [file]
        self._readers: dict[KeyPath, tuple[ArraySpec, Callable[[], Array]]] = {}
        for shard in shards:
            self._readers |= read_leaves(shard, lambda name: file.with_name(f"{file.name}_gda") / name)
        self.arrays: Mapping[KeyPath, ArraySpec] = {path: spec for path, (spec, _) in self._readers.items()}

    def read(self, paths: Collection[KeyPath]) -> dict[KeyPath, Array]:
        """Return the values of these arrays. Raises SourceUnreadable if files are missing or damaged."""
        return {path: self._readers[path][1]() for path in paths}


def _choose(directory: Path) -> Path:
    found = find_files(directory)
    if len(found) > 1 and found[0].suffix == SUFFIX:
        names = ", ".join(path.name for path in found)
        raise SourceUnreadable(f"{directory} contains several files of Flax: {names}. Name one of them")
    if not found:
        raise SourceUnreadable(f"{directory} contains no file of Flax (*{SUFFIX} or checkpoint_100)")
    return found[-1]


def _list_shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnreadable(f"cannot read {index.name}: {reason_of(error)}. {_AGAIN}") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise SourceUnreadable(f"{index.name} names {', '.join(missing)}, which is missing. {_AGAIN}")
    return [index.parent / name for name in names]


def read_leaves(
    file: Path, directory_of: Callable[[str], Path]
) -> dict[KeyPath, tuple[ArraySpec, Callable[[], Array]]]:
    """Return the spec of each array and number of a file, with a function that reads it.

    `directory_of` returns the zarr directory for a name in the tree. Raises SourceUnreadable.
    """
    try:
        opened = MsgpackFile(file)
    except (Damaged, OSError) as error:
        raise SourceUnreadable(f"cannot read {file.name} as a file of Flax: {reason_of(error)}. {_AGAIN}") from error
    elsewhere = dict(_list_directories(opened.index))
    leaves: dict[KeyPath, tuple[ArraySpec, Callable[[], Array]]] = {}
    for path, name in elsewhere.items():
        array = ZarrArray.open(directory_of(name))
        leaves[path] = (array.spec, array.read)
    for path, one in opened.index.arrays.items():
        if not _is_within(path, elsewhere):
            leaves[path] = (one.spec, _reader(opened, path))
    for path, number in opened.index.numbers.items():
        if not _is_within(path, elsewhere):
            value = np.asarray(number)
            leaves[path] = (ArraySpec(value.dtype.name, ()), _constant(value))
    return {_without_optimizer(path): leaf for path, leaf in leaves.items()}


def _without_optimizer(path: KeyPath) -> KeyPath:
    """Move parameters out of the optimizer, which T5X and Flax before 0.6 stored them in (`optimizer/target`)."""
    return path[1:] if path[:2] == _TARGET else path


def _reader(file: MsgpackFile, path: KeyPath) -> Callable[[], Array]:
    return lambda: file.read(path)


def _constant(value: Array) -> Callable[[], Array]:
    return lambda: value


def _list_directories(index: MsgpackIndex) -> Iterator[tuple[KeyPath, str]]:
    """Yield the leaves that are elsewhere, with the names of their directories."""
    for path, text in index.texts.items():
        if path[-2:] == ("kvstore", "path") and (*path[:-2], "driver") in index.texts:
            yield path[:-2], text.strip("/")  # a specification of tensorstore, by T5X
        for start in (_PLACEHOLDER, _OF_PROCESSES):
            if text.startswith(start):
                yield path, text.removeprefix(start)


def _is_within(path: KeyPath, roots: Mapping[KeyPath, str]) -> bool:
    return any(path[:depth] in roots for depth in range(len(path)))
