"""Layout of Orbax directories: the steps of a manager's directory and the items of a step. It imports no framework.

An *item* is a directory with one saved tree; its `_METADATA` lists the leaves. StandardCheckpointer and
PyTreeCheckpointer write a single item. CheckpointManager writes a directory for each step, with items named `default`
or as the user chose.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable

TREE_FILE = "_METADATA"
_STEP_FILE = "_CHECKPOINT_METADATA"
_UNFINISHED = re.compile(r"\.orbax-checkpoint-tmp")
_STEP = re.compile(r"(?:.*[_-])?(\d+)")
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
    is_step = _STEP.fullmatch(directory.name) or _UNFINISHED.search(directory.name)
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


def _items(directory: Path) -> dict[str, Path]:
    if not directory.is_dir() or _UNFINISHED.search(directory.name):
        return {}
    if (directory / TREE_FILE).is_file():
        return {"": directory}
    named = {path.name: path for path in sorted(directory.iterdir()) if (path / TREE_FILE).is_file()}
    return {"": named[_ONLY]} if named.keys() == {_ONLY} else named


def _step_of(directory: Path) -> int | None:
    """Return the step number from a name such as `300` or `step_300`, or None. Unfinished names do not match."""
    match = _STEP.fullmatch(directory.name)
    return int(match[1]) if match and directory.is_dir() else None


def _explain(source: Path) -> str:
    unfinished = sorted(path.name for path in source.iterdir() if _UNFINISHED.search(path.name))
    if unfinished:
        return f"{source.name} contains no finished checkpoint. {', '.join(unfinished)} is incomplete"
    where = next((path for path in _nearby(source) if (path / _STEP_FILE).is_file()), source)
    part = where.name if where == source else where.relative_to(source).as_posix()
    return f"{part} contains no readable tree: its {TREE_FILE} is missing"
