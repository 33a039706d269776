"""Reads Orbax checkpoints: the arrays of the latest step, with shapes if JAX and Orbax are installed."""

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.inspection.tree import list_arrays, list_parts
from tpuserve_exporter.models.tree_path import TreeNames
from tpuserve_exporter.sources.trees.orbax import TREE_FILE, OrbaxLayout, OrbaxTree, find_layout


def inspect_orbax(path: Path) -> Contents:
    """Return the contents of an Orbax checkpoint. Raises SourceUnreadable."""
    layout = find_layout(path)
    known = all(importlib.util.find_spec(package) is not None for package in ("jax", "orbax"))
    arrays = list_arrays(OrbaxTree(path)) if known else tuple(_list_names(layout))
    files = {
        one.relative_to(path).as_posix(): one.stat().st_size
        for item in layout.items.values()
        for one in sorted(item.rglob("*"))
        if one.is_file()
    }
    facts = {} if layout.step is None else {"step": str(layout.step)}
    if list(layout.items) != [""]:
        facts["items"] = ", ".join(layout.items)
    notes = () if known else ("to see dtypes and shapes, install JAX: pip install 'tpuserve-exporter[jax]'",)
    return Contents(kind="Orbax checkpoint", name=layout.name, facts=facts, arrays=arrays, files=files, notes=notes)


def _list_names(layout: OrbaxLayout) -> Iterator[StoredArray]:
    """Yield the arrays of the trees' metadata, which writes each path as a Python tuple of strings."""
    for item, directory in layout.items.items():
        try:
            listed = json.loads((directory / TREE_FILE).read_bytes())["tree_metadata"]
            paths = [tuple(map(str, ast.literal_eval(path))) for path in listed]
        except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
            raise SourceUnreadable(f"cannot read {layout.name}/{TREE_FILE}: {reason_of(error)}") from error
        names = TreeNames(paths := [(item, *path) if item else path for path in paths])
        parts = list_parts(paths)
        yield from (StoredArray(names.name(keys), None, None, parts[keys]) for keys in paths)
