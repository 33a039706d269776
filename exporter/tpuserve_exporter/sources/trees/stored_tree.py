"""A stored tree of arrays, independent of its format: the interface that all formats of JAX checkpoints have.

docs/explanation/decisions/0088-trees-of-arrays-have-one-reader-interface.md explains the readers.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

_STEP = re.compile(r"(?:.*[_-])?(\d+)")


class StoredTree(Protocol):
    """The arrays of one checkpoint. Python numbers are arrays without dimensions. `step` is None if unknown."""

    name: str
    step: int | None
    arrays: Mapping[KeyPath, ArraySpec]

    def read(self, paths: Collection[KeyPath]) -> dict[KeyPath, Array]:
        """Return the values of these arrays. Raises SourceUnreadable if files are missing or damaged."""
        ...


def is_step(path: KeyPath) -> bool:
    """Return whether the path names the training's step, possibly in a box (`step/value`)."""
    return "step" in path[-2:]


def step_in_name(path: Path) -> int | None:
    """Return the training step in a name such as `300`, `step_300` or `checkpoint_300`, or None."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None
