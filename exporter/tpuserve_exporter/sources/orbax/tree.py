"""The saved tree of an Orbax checkpoint: its arrays, and their values without the devices that saved them."""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.models.tree_path import KeyPath, flatten, keys_of
from tpuserve_exporter.sources.orbax.layout import TREE_FILE, OrbaxLayout, find_layout
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

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


class OrbaxTree:
    """One checkpoint. If it has several items, the first key of an array's path is the item's name."""

    def __init__(self, source: Path) -> None:
        """Read the list of arrays, without values. Raises SourceUnreadable."""
        import orbax.checkpoint

        logging.getLogger("absl").setLevel(logging.ERROR)  # advice on other ways to save arrays
        self.layout: OrbaxLayout = find_layout(source)
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
