"""Detects the kind of a path and reads its contents. Imports a framework only if the kind needs it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, UnsafeSource
from tpuserve_exporter.inspection.contents import Contents
from tpuserve_exporter.inspection.tree import inspect_tree
from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX, is_torch_archive
from tpuserve_exporter.sources.hugging_face_directory import is_hugging_face
from tpuserve_exporter.sources.keras.archive import is_index
from tpuserve_exporter.sources.kinds import list_others
from tpuserve_exporter.sources.torch.distributed_metadata import is_distributed
from tpuserve_exporter.sources.trees.flax_file import FlaxTree, find_flax, is_flax
from tpuserve_exporter.sources.trees.npz_file import NpzTree, is_npz
from tpuserve_exporter.sources.trees.pickles import explain_pickle, is_pickle
from tpuserve_exporter.sources.trees.zarr_directory import ZarrTree, find_zarr
from tpuserve_exporter.terms.texts import first

_KERAS = (".keras", ".h5", ".hdf5")
_TORCH = (".pt", ".pth", ".bin")


def inspect(path: Path, verify: bool = False, start: Callable[[], None] = lambda: None) -> Contents:
    """Return the contents of a path. `verify` reads every file of a published version.

    `start` starts TensorFlow if the kind needs it. Raises SourceUnreadable.
    """
    if not path.exists() and not path.with_name(path.name + ".index").is_file():
        raise SourceUnreadable(f"{path} does not exist")
    found = _read_without_tensorflow(path)
    if found is not None:
        return found
    start()
    return _read_directory(path, verify) if path.is_dir() else _read_file(path)


def _read_without_tensorflow(path: Path) -> Contents | None:
    if is_hugging_face(path):
        from tpuserve_exporter.inspection.hugging_face import inspect_hugging_face

        return inspect_hugging_face(path)
    if path.is_dir():
        return None if _is_saved_model(path) else _read_weights(path)
    if not path.is_file():
        return None
    if path.suffix in _KERAS or is_index(path):
        from tpuserve_exporter.inspection.keras_file import inspect_keras

        return inspect_keras(path)
    if path.suffix == ".safetensors" or path.name.endswith(INDEX_SUFFIX):
        from tpuserve_exporter.inspection.torch_file import inspect_safetensors

        return inspect_safetensors(path)
    if path.suffix in _TORCH or is_torch_archive(path):
        from tpuserve_exporter.inspection.torch_file import inspect_torch

        return inspect_torch(path)
    if path.suffix == ".pt2":
        from tpuserve_exporter.inspection.torch_file import inspect_torch_program

        return inspect_torch_program(path)
    if is_npz(path):
        return inspect_tree("NumPy file", NpzTree(path), path)
    if is_flax(path):
        return inspect_tree("Flax file", FlaxTree(path), path)
    if is_pickle(path):
        raise UnsafeSource(explain_pickle(path))
    return None


def _read_weights(path: Path) -> Contents | None:
    """Return the contents of a directory with weights of PyTorch, or None for another."""
    if is_distributed(path):
        from tpuserve_exporter.inspection.torch_distributed import inspect_distributed

        return inspect_distributed(path)
    found = sorted(path.glob(f"*{INDEX_SUFFIX}")) or sorted(path.glob("*.safetensors"))
    if not found:
        return None
    if len(found) > 1:
        names = first(one.name for one in found)
        raise SourceUnreadable(f"{path.name} contains several files of weights: {names}. Name one")
    from tpuserve_exporter.inspection.torch_file import inspect_safetensors

    return inspect_safetensors(found[0])


def _read_file(path: Path) -> Contents:
    from tpuserve_exporter.inspection.checkpoint import inspect_checkpoint, inspect_meta

    if path.suffix == ".meta":
        return inspect_meta(path)
    if path.suffix == ".index" or path.with_name(path.name + ".index").is_file():
        return inspect_checkpoint(path)
    raise SourceUnreadable(
        f"cannot inspect {path.name}. Expected a checkpoint's prefix or .index, .meta, .keras, .h5, .safetensors, "
        ".pt, .pt2, .msgpack, .npz, a file of torch.save, or a directory"
    )


def _read_directory(path: Path, verify: bool) -> Contents:
    from tpuserve_exporter.inspection.checkpoint import inspect_checkpoint
    from tpuserve_exporter.inspection.orbax import inspect_orbax
    from tpuserve_exporter.inspection.saved_model import inspect_saved_model
    from tpuserve_exporter.sources.trees.orbax import is_orbax

    if _is_saved_model(path):
        return inspect_saved_model(path, verify)
    if versions := [one for one in path.iterdir() if one.name.isdecimal() and _is_saved_model(one)]:
        return _add_versions(inspect_saved_model(max(versions, key=_number), verify), path, versions)
    if find_zarr(path) is not None:
        return inspect_tree("checkpoint of zarr directories", ZarrTree(path), path)
    if (path / "checkpoint").is_file() or any(path.glob("*.index")):
        return inspect_checkpoint(path)
    if is_orbax(path):
        return inspect_orbax(path)
    if find_flax(path) is not None:
        return inspect_tree("Flax file", FlaxTree(path), path)
    within = list_others(path, None)
    hint = f". It contains {', '.join(within)}. Name one of them" if within else ""
    raise SourceUnreadable(f"{path} contains no checkpoint, no SavedModel and no versions{hint}")


def _is_saved_model(path: Path) -> bool:
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def _number(path: Path) -> int:
    return int(path.name)


def _add_versions(contents: Contents, base: Path, versions: list[Path]) -> Contents:
    listed = ", ".join(one.name for one in sorted(versions, key=_number))
    named = {"model": base.resolve().name, "versions": f"{listed}; this output is for {contents.name}"}
    return replace(contents, facts=named | dict(contents.facts))
