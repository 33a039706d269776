"""Reads the arrays of Flax files, zarr directories and .npz files, without a framework."""

from collections.abc import Iterable
from pathlib import Path

from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames
from tpuserve_exporter.sources.part_roles import Role
from tpuserve_exporter.sources.trees.kept_weights import KeptStates
from tpuserve_exporter.sources.trees.stored_tree import StoredTree, is_step
from tpuserve_exporter.sources.trees.tree_matching import unbox


def inspect_tree(kind: str, tree: StoredTree, path: Path) -> Contents:
    """Return the contents of a tree. `path` is its file or directory."""
    inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    files = {one.name if one == path else one.relative_to(path).as_posix(): one.stat().st_size for one in inside}
    facts = {} if tree.step is None else {"step": str(tree.step)}
    return Contents(kind=kind, name=tree.name, facts=facts, arrays=list_arrays(tree), files=files)


def list_arrays(tree: StoredTree) -> tuple[StoredArray, ...]:
    names, parts = TreeNames(tree.arrays), list_parts(tree.arrays)
    return tuple(
        StoredArray(names.name(keys), spec.dtype, spec.shape, parts[keys]) for keys, spec in tree.arrays.items()
    )


def list_parts(paths: Iterable[KeyPath]) -> dict[KeyPath, str]:
    """Return the part of each array: its role in an export, or "other" for the step of the training."""
    bare = unbox(paths)
    states = KeptStates(bare)
    roles = {path: states.role_of_array(path) for path in bare}
    return {
        original: "other" if roles[path] is Role.MODEL and is_step(path) else roles[path]
        for path, original in bare.items()
    }
