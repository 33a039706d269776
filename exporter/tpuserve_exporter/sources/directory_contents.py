"""Finds sources in a directory: the kinds that the directory itself can be, and other sources in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tpuserve_exporter.sources.orbax.layout import find_orbax

# The contents of a TensorFlow checkpoint show whether it is one of TF2 or TF1.
DirectoryKind = Literal["savedmodel", "orbax", "tf-ckpt", "torch"]
TITLES: dict[DirectoryKind, str] = {
    "savedmodel": "a SavedModel",
    "orbax": "an Orbax checkpoint",
    "tf-ckpt": "a TensorFlow checkpoint",
    "torch": "PyTorch weights",
}
# Values of --from.
OPTIONS: dict[DirectoryKind, str] = {
    "savedmodel": "savedmodel",
    "orbax": "orbax",
    "tf-ckpt": "tf2-ckpt (or tf1-ckpt)",
    "torch": "torch",
}
_MODEL_FILES = (".keras", ".h5", ".pt", ".pth", ".pt2")
_MOST_NAMED = 6


def find_kinds(directory: Path) -> dict[DirectoryKind, str]:
    """Return the kinds that the directory itself can be, each with the file or subdirectory that shows it."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    found: dict[DirectoryKind, str | None] = {
        "savedmodel": next((name for name in names if name in ("saved_model.pb", "saved_model.pbtxt")), None),
        "orbax": find_orbax(directory),
        "tf-ckpt": next((name for name in names if name.endswith(".index")), None) or _state_file(names),
        "torch": next((name for name in names if name.endswith(".safetensors")), None),
    }
    return {kind: name for kind, name in found.items() if name is not None}


def list_others(directory: Path, kind: DirectoryKind | None) -> list[str]:
    """List sources of other kinds than `kind`: names of the first few, and the number of the others."""
    found = [*_files(directory), *_folders(directory, kind)]
    more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return [*found[:_MOST_NAMED], *more]


def _state_file(names: list[str]) -> str | None:
    return "checkpoint" if "checkpoint" in names else None


def _files(directory: Path) -> Iterator[str]:
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in _MODEL_FILES:
            yield path.name


def _folders(directory: Path, kind: DirectoryKind | None) -> Iterator[str]:
    # The `variables` directory of a SavedModel is not a source without the graph.
    for folder in sorted(path for path in directory.iterdir() if path.is_dir() and path.name != "variables"):
        kinds = find_kinds(folder)
        if kinds and kind not in kinds:
            yield f"{folder.name}/ ({TITLES[next(iter(kinds))]})"
