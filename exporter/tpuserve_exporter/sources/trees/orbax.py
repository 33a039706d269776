"""The trees in Orbax directories: the steps of a manager's directory, the items of a step, and their arrays.

An *item* is a directory with one saved tree; its `_METADATA` lists the leaves. StandardCheckpointer and
PyTreeCheckpointer write a single item. CheckpointManager writes a directory for each step, with items named `default`
or as the user chose. This module imports a framework only to read a tree.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.models.tree_path import KeyPath, flatten, keys_of
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.trees.stored_tree import step_in_name
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

TREE_FILE = "_METADATA"
_STEP_FILE = "_CHECKPOINT_METADATA"
_UNFINISHED = re.compile(r"\.orbax-checkpoint-tmp")
# The parts of the state of a Keras model.
_KERAS_PARTS = frozenset({"trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"})
# The name that a manager gives to an item without a name.
_ONLY = "default"


@dataclass(frozen=True, slots=True)
class OrbaxLayout:
    """A checkpoint's directories. `items` are by name, which is empty for a single tree. `step` is None if unknown."""

    name: str
    step: int | None
    items: dict[str, Path]


def is_orbax(directory: Path) -> bool:
    """Return whether Orbax wrote the directory, finished or not."""
    return find_orbax(directory) is not None


def find_orbax(directory: Path) -> str | None:
    """Return the file or subdirectory that shows that Orbax wrote the directory, finished or not, or None.

    The directory is an item or a step, or holds items, or steps with items.
    """
    own = next((file for file in (TREE_FILE, _STEP_FILE) if (directory / file).is_file()), None)
    parts = (f"{path.name}/" for path in sorted(directory.iterdir()) if path.is_dir() and _is_part(path))
    return own or next(parts, None)


def _is_part(directory: Path) -> bool:
    """Return whether Orbax wrote a directory as an item, a step, or an unfinished step."""
    if _is_marked(directory):
        return True
    is_step = step_in_name(directory) is not None or _UNFINISHED.search(directory.name)
    return bool(is_step) and any(path.is_dir() and _is_marked(path) for path in directory.iterdir())


def _is_marked(directory: Path) -> bool:
    return (directory / TREE_FILE).is_file() or (directory / _STEP_FILE).is_file()


def _nearby(directory: Path) -> list[Path]:
    children = [path for path in directory.iterdir() if path.is_dir()]
    return [directory, *children, *(below for path in children for below in path.iterdir() if below.is_dir())]


def find_layout(source: Path) -> OrbaxLayout:
    """Return the layout of an item, a step, or the latest step of a manager's directory. Raises SourceUnreadable."""
    if not source.is_dir():
        raise SourceUnreadable(f"{source} is not a directory, but Orbax checkpoints are directories")
    if _UNFINISHED.search(source.name):
        raise SourceUnreadable(f"{source.name} is not finished: Orbax renames a checkpoint when it is complete")
    items = _items(source)
    if items:
        return OrbaxLayout(source.name, _step_of(source), items)
    steps = {step: path for path in source.iterdir() if (step := _step_of(path)) is not None and _items(path)}
    if not steps:
        raise SourceUnreadable(_explain(source))
    latest = steps[max(steps)]
    return OrbaxLayout(f"{source.name}/{latest.name}", max(steps), _items(latest))


def is_keras(source: Path) -> bool:
    """Return whether Keras' callback OrbaxCheckpoint wrote the directory. Reads only the list of leaves."""
    try:
        items = find_layout(source).items
        tree = json.loads((items["pytree"] if "pytree" in items else items[""]).joinpath(TREE_FILE).read_text())
        roots = {str(leaf["key_metadata"][0]["key"]) for leaf in tree["tree_metadata"].values()}
    except (SourceUnreadable, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return False
    return "trainable_variables" in roots and roots <= _KERAS_PARTS


def _items(directory: Path) -> dict[str, Path]:
    if not directory.is_dir() or _UNFINISHED.search(directory.name):
        return {}
    if (directory / TREE_FILE).is_file():
        return {"": directory}
    named = {path.name: path for path in sorted(directory.iterdir()) if (path / TREE_FILE).is_file()}
    return {"": named[_ONLY]} if named.keys() == {_ONLY} else named


def _step_of(directory: Path) -> int | None:
    """Return the step number from a name such as `300` or `step_300`, or None. Unfinished names do not match."""
    return step_in_name(directory) if directory.is_dir() else None


def _explain(source: Path) -> str:
    unfinished = sorted(path.name for path in source.iterdir() if _UNFINISHED.search(path.name))
    if unfinished:
        return f"{source.name} contains no finished checkpoint. {', '.join(unfinished)} is incomplete"
    where = next((path for path in _nearby(source) if (path / _STEP_FILE).is_file()), source)
    part = where.name if where == source else where.relative_to(source).as_posix()
    return f"{part} contains no readable tree: its {TREE_FILE} is missing"


_Answer = TypeVar("_Answer")

# Runs Orbax's reads in a separate thread, with an event loop that ignores callbacks after it is closed.
#
# Orbax reads all arrays at once, and closes its loop when one read fails. The other reads then call a closed loop, and
# Python prints a traceback for each. The thread allows callers that have a running loop, such as notebooks.


class _Loop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Ignore callbacks that come after the loop is closed, because no caller waits for them."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report errors, except those that no caller retrieved: reads that failed after the first one."""
        if "never retrieved" not in str(context.get("message")):
            super().call_exception_handler(context)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()


@contextlib.contextmanager
def _patient_loops() -> Iterator[None]:
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


def run_apart(read: Callable[[], _Answer]) -> _Answer:
    """Run `read` in a separate thread. Return its result, or raise its error. Blocks."""
    with _patient_loops(), ThreadPoolExecutor(1, "orbax") as thread:
        return thread.submit(read).result()


# Start of tensorstore's messages for missing or damaged files.
_NOT_WHOLE = re.compile(r"(NOT_FOUND|OUT_OF_RANGE|DATA_LOSS|FAILED_PRECONDITION): ")
_AGAIN = "Copy the directory again, or export an earlier step"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Open a saved tree, a step of a CheckpointManager, or its directory. Raises the errors of `open_tree`."""
    from tpuserve_exporter.sources.trees.restore import open_tree

    return open_tree("orbax", OrbaxTree(source), options)


class OrbaxTree:
    """One checkpoint. If it has several items, the first key of an array's path is the item's name."""

    def __init__(self, source: Path) -> None:
        """Read the list of arrays, without values. Raises SourceUnreadable."""
        import orbax.checkpoint

        logging.getLogger("absl").setLevel(logging.ERROR)  # advice on other ways to save arrays
        self.layout: OrbaxLayout = find_layout(source)
        self.name, self.step = self.layout.name, self.layout.step
        self._handler = orbax.checkpoint.PyTreeCheckpointHandler()
        self._trees = {name: self._read_tree(path) for name, path in self.layout.items.items()}
        self._item_of = {path: name for name, tree in self._trees.items() for path, _ in leaves_of(tree, name)}
        self.arrays: Mapping[KeyPath, ArraySpec] = {
            path: ArraySpec(np.dtype(leaf.dtype).name, tuple(leaf.shape))
            for name, tree in self._trees.items()
            for path, leaf in leaves_of(tree, name)
            if getattr(leaf, "shape", None) is not None and getattr(leaf, "dtype", None) is not None
        }

    def read(self, paths: Collection[KeyPath]) -> dict[KeyPath, Array]:
        """Return the values of these arrays. Raises SourceUnreadable if files are missing or damaged."""
        values: dict[KeyPath, Array] = {}
        for item in {self._item_of[path] for path in paths}:
            values |= {path: value for path, value in self._read_item(item, paths) if path in paths}
        return values

    def _read_tree(self, path: Path) -> Any:  # noqa: ANN401 - a tree of any saved types
        from etils import epath

        return self._guard(path, lambda: self._handler.metadata(epath.Path(path.absolute())).tree)

    def _read_item(self, item: str, paths: Collection[KeyPath]) -> list[tuple[KeyPath, Any]]:
        """Return the requested arrays of an item as numpy arrays, without reading the others.

        An array's sharding names devices that this machine does not have.
        """
        import jax
        import orbax.checkpoint as ocp
        from etils import epath

        # Orbax takes no path from the working directory.
        prefix, directory = _prefix(item), self.layout.items[item].absolute()
        wanted = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf if (*prefix, *keys_of(path)) in paths else ocp.PLACEHOLDER, self._trees[item]
        )
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), self._trees[item])
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy)
        return leaves_of(
            self._guard(directory, lambda: self._handler.restore(epath.Path(directory), args=arguments)), item
        )

    def _guard(self, directory: Path, read: Callable[[], _Answer]) -> _Answer:
        try:
            return run_apart(read)
        except Exception as error:  # JSON, file or tensorstore errors
            raise SourceUnreadable(f"cannot read {self.layout.name}: {_reason(error, directory)}") from error


def leaves_of(tree: Any, item: str = "") -> list[tuple[KeyPath, Any]]:  # noqa: ANN401 - any tree
    """Return the leaves of a tree with their paths."""
    prefix = _prefix(item)
    return [((*prefix, *keys_of(path)), leaf) for path, leaf in flatten(tree)]


def _prefix(item: str) -> KeyPath:
    return (item,) if item else ()


def _reason(error: Exception, directory: Path) -> str:
    """Return the cause, without tensorstore's specification and parent directories.

    If files are missing or damaged, add advice.
    """
    if isinstance(error, json.JSONDecodeError):
        return f"its description, {TREE_FILE} or a file next to it, is truncated or damaged. {_AGAIN}"
    reason = reason_of(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
    if (status := _NOT_WHOLE.match(reason)) is not None:
        return f"a file in it is missing, truncated or damaged ({status[1]}). {_AGAIN}"
    for path in (directory.resolve(), directory.absolute(), directory):
        reason = reason.replace(f"{path.parent}/", "")
    return f"{type(error).__name__}: {reason}" if isinstance(error, KeyError) else reason
