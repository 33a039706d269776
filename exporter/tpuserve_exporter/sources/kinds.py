"""The kinds of source: the module that opens each, the packages that it needs, and the detection of a kind.

The files show the kind, and file names only where the contents do not show it.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuserve_exporter.errors import ExportError, MissingExtra, OptionConflict, SourceUnreadable, UnsafeSource
from tpuserve_exporter.options.export_options import WEIGHTS, ModelOptions, SourceKind
from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX, find_prefix, is_old_checkpoint, is_torch_archive
from tpuserve_exporter.sources.hugging_face_directory import CONFIG, is_hugging_face
from tpuserve_exporter.sources.keras.archive import is_index
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.torch.distributed_metadata import SUFFIX
from tpuserve_exporter.sources.trees.flax_file import find_flax, is_flax
from tpuserve_exporter.sources.trees.npz_file import is_npz
from tpuserve_exporter.sources.trees.orbax import find_orbax, is_keras
from tpuserve_exporter.sources.trees.pickles import explain_pickle, is_pickle
from tpuserve_exporter.sources.trees.zarr_directory import find_zarr
from tpuserve_exporter.sources.variables.object_graph import OBJECT_GRAPH_KEY, open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source. `module` in this package has a function `open_source(path, options)`. Messages use `title`.

    `tpuserve-exporter[extra]` installs the `packages` that the module imports in addition to TensorFlow.
    """

    name: SourceKind
    title: str
    module: str
    extra: str = ""
    packages: tuple[str, ...] = ()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("tf2-ckpt", "a TF2 checkpoint (directory, prefix or .index file)", "tf2_checkpoint"),
        Kind("tf1-ckpt", "a TF1 checkpoint (directory, prefix or .index file)", "tf1.checkpoint"),
        Kind("tf1-meta", "a .meta graph of TensorFlow 1 with its checkpoint", "tf1.meta"),
        Kind("keras", "a Keras model", "keras.file"),
        Kind("orbax", "an Orbax checkpoint", "trees.orbax", "jax", ("jax", "flax", "orbax")),
        Kind("flax", "a Flax file (.msgpack, or checkpoint_100)", "trees.flax_file", "jax", ("jax", "flax")),
        Kind(
            "zarr",
            "a checkpoint of zarr directories (T5X, PaxML)",
            "trees.zarr_directory",
            extra="jax",
            packages=("jax", "flax", "tensorstore"),
        ),
        Kind("npz", "an .npz file of parameters", "trees.npz_file", "jax", ("jax", "flax")),
        Kind(
            "torch",
            "a PyTorch model (.pt, .pt2 or safetensors)",
            "torch.file",
            extra="torch",
            packages=("torch", "torchax", "safetensors", "jax"),
        ),
        Kind(
            "huggingface",
            "a Hugging Face directory (config.json and weights)",
            "torch.hugging_face",
            extra="huggingface",
            packages=("torch", "torchax", "safetensors", "jax", "transformers"),
        ),
        Kind("savedmodel", "a SavedModel", "saved_model.directory"),
    )
}

# Kinds without parts that --weights could name, and kinds that never have an average of optax.
_WITHOUT_PARTS = frozenset({"tf1-ckpt", "tf1-meta", "keras", "savedmodel"})
_WITHOUT_OPTAX = _WITHOUT_PARTS | {"tf2-ckpt", "torch"}
# Kinds that may hold a Keras 3 model. Only these take --int8.
_QUANTIZED = frozenset({"tf2-ckpt", "keras"})


def open_source(kind: SourceKind, source: Path, options: ModelOptions) -> OpenedSource:
    """Read the source. Raises MissingExtra, OptionConflict, or another ExportError of the kind's module."""
    # Keras writes directories with Orbax.
    require_packages("orbax" if kind == "keras" and source.is_dir() else kind, source.name)
    if options.int8 and kind not in _QUANTIZED:
        raise OptionConflict(
            f"--int8 quantizes only Keras models, but {source.name} is {KINDS[kind].title}. Quantize the model in "
            "its own framework before the export, or omit --int8"
        )
    if options.weights not in WEIGHTS and kind in _WITHOUT_PARTS:
        raise OptionConflict(
            f"--weights {options.weights}: {source.name} is {KINDS[kind].title} and has no parts to name. Use "
            f"--weights {', '.join(WEIGHTS[:-1])} or {WEIGHTS[-1]}"
        )
    if options.weights_decay is not None and kind in _WITHOUT_OPTAX:
        raise OptionConflict("--weights-decay applies only to averages of optax.ema in checkpoints of JAX. Omit it")
    if options.tag_set and kind != "savedmodel":
        raise OptionConflict(f"--tag-set chooses a graph of a SavedModel, but {source.name} is {KINDS[kind].title}")
    if options.imports and (kind != "keras" or options.builder is not None):
        raise OptionConflict(
            "--import gives the classes of a whole Keras model, which the exporter reads without --model. Omit --import"
        )
    opener: Callable[[Path, ModelOptions], OpenedSource]
    opener = importlib.import_module(f"tpuserve_exporter.sources.{KINDS[kind].module}").open_source
    return opener(source, options)


def open_as_kind(kind: SourceKind, source: Path, options: ModelOptions) -> OpenedSource:
    """Open the source as the kind that --from gives.

    If that fails and the source looks like another kind, the error names that kind.
    """
    try:
        return open_source(kind, source, options)
    except (SourceUnreadable, MissingExtra) as error:
        found = _detect(source, options)
        if found is None or found == kind:
            raise
        reason = str(error).partition(". ")[0]
        message = f"--from {kind}: {reason}. It looks like {KINDS[found].title}. Use --from {found}, or omit --from"
        raise SourceUnreadable(message) from error


def _detect(source: Path, options: ModelOptions) -> SourceKind | None:
    with contextlib.suppress(ExportError):
        return detect(source, builds_itself(options))
    return None


def builds_itself(options: ModelOptions) -> bool:
    """Return whether --model is a function of the user, and not a class of transformers, which reads a directory."""
    return options.builder is not None and not options.builder.startswith(_TRANSFORMERS)


def require_packages(kind: SourceKind, name: str) -> None:
    """Raise MissingExtra if packages that the kind needs are not installed. `name` is the source's name."""
    wanted = KINDS[kind]
    missing = [package for package in wanted.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingExtra(
            f"{name} is {wanted.title} and needs {', '.join(missing)} (pip install 'tpuserve-exporter[{wanted.extra}]')"
        )


# The contents of a TensorFlow checkpoint show whether it is one of TF2 or TF1.
DirectoryKind = Literal["savedmodel", "orbax", "zarr", "tf-ckpt", "huggingface", "torch", "flax"]
TITLES: dict[DirectoryKind, str] = {
    "savedmodel": "a SavedModel",
    "orbax": "an Orbax checkpoint",
    "zarr": "a checkpoint of zarr directories",
    "tf-ckpt": "a TensorFlow checkpoint",
    "huggingface": "a Hugging Face model",
    "torch": "PyTorch weights",
    "flax": "a Flax file",
}
# Values of --from.
OPTIONS: dict[DirectoryKind, str] = {
    "savedmodel": "savedmodel",
    "orbax": "orbax",
    "zarr": "zarr",
    "tf-ckpt": "tf2-ckpt (or tf1-ckpt)",
    "huggingface": "huggingface",
    "torch": "torch",
    "flax": "flax",
}
_MODEL_FILES = (".keras", ".h5", ".pt", ".pth", ".pt2", ".npz")
_MOST_NAMED = 6
# Beginnings of --model that name a class of the package transformers.
_TRANSFORMERS = ("transformers:", "transformers.")


def find_kinds(directory: Path) -> dict[DirectoryKind, str]:
    """Return the kinds that the directory itself can be, each with the file or subdirectory that shows it."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    zarr = find_zarr(directory)
    # T5X has a file of the name that TensorFlow gives to its list of checkpoints.
    state_file = "checkpoint" if "checkpoint" in names and zarr != "checkpoint" else None
    torch = next((name for name in names if name.endswith((".safetensors", SUFFIX))), None)
    found: dict[DirectoryKind, str | None] = {
        "savedmodel": next((name for name in names if name in ("saved_model.pb", "saved_model.pbtxt")), None),
        "orbax": find_orbax(directory),
        "zarr": zarr,
        "tf-ckpt": next((name for name in names if name.endswith(".index")), None) or state_file,
        "huggingface": CONFIG if is_hugging_face(directory) else None,
        "torch": torch,
        "flax": find_flax(directory),
    }
    # The weights of a Hugging Face directory are not a second source. It has the same weights for each framework.
    found["torch"] = None if found["huggingface"] else found["torch"]
    found["flax"] = None if found["huggingface"] or found["torch"] else found["flax"]
    return {kind: name for kind, name in found.items() if name is not None}


def list_others(directory: Path, kind: DirectoryKind | None) -> list[str]:
    """List sources of other kinds than `kind`: names of the first few, and the number of the others."""
    found = [*_files(directory), *_folders(directory, kind)]
    more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return [*found[:_MOST_NAMED], *more]


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


_KERAS_SUFFIXES = (".keras", ".h5")
_TORCH_SUFFIXES = (".pt", ".pth", ".pt2", ".safetensors")


def detect(source: Path, has_builder: bool = True) -> SourceKind:
    """Return the kind of `source`. Raises SourceUnreadable with the kinds that were looked for.

    A checkpoint by name may have its graph in a .meta file. Without a builder, that file is the source. With one, the
    weights in a Hugging Face directory are for the builder's module.
    """
    if source.is_dir():
        return _detect_directory(source, has_builder)
    if source.is_file() and source.suffix == ".meta":
        return "tf1-meta"
    if source.is_file() and (source.suffix in _KERAS_SUFFIXES or is_index(source)):
        return "keras"
    if source.is_file() and _is_torch(source):
        return "torch"
    if source.is_file() and is_npz(source):
        return "npz"
    if source.suffix == ".index" or source.with_name(source.name + ".index").is_file() or is_old_checkpoint(source):
        return _detect_checkpoint(source, has_builder)
    if source.is_file() and is_flax(source):
        return "flax"
    if not source.exists():
        raise SourceUnreadable(
            f"there is no file or directory {source}, and no checkpoint of that name{_others(source)}"
        )
    if is_pickle(source):
        raise UnsafeSource(explain_pickle(source))
    raise SourceUnreadable(
        f"the kind of {source} is unknown: it is not .keras, .h5, .pt, .pt2, safetensors, .msgpack, .npz, a checkpoint "
        "or a SavedModel"
    )


def _detect_directory(source: Path, has_builder: bool) -> SourceKind:
    kinds = find_kinds(source)
    if not kinds:
        raise SourceUnreadable(_explain_none(source))
    if len(kinds) > 1:
        raise SourceUnreadable(_explain_several(source, kinds, []))
    (kind,) = kinds
    # A file shows the kind of its directory. A subdirectory shows it only if the directory has no other source.
    if kinds[kind].endswith("/") and (others := list_others(source, kind)):
        raise SourceUnreadable(_explain_several(source, kinds, others))
    if kind == "huggingface" and has_builder:
        return "torch"
    if kind == "orbax" and is_keras(source):
        return "keras"
    return _detect_checkpoint(source, has_builder) if kind == "tf-ckpt" else kind


def _explain_none(source: Path) -> str:
    versions = sorted(path.name for path in source.iterdir() if (path / "saved_model.pb").is_file())
    within = [] if versions else list_others(source, None)
    hint = f". Its subdirectories {', '.join(versions)} are SavedModels. Name one of them" if versions else ""
    hint = f". It contains {', '.join(within)}. Name one of them" if within else hint
    return f"{source} contains no checkpoint (*.index, or Orbax's _METADATA) and no saved_model.pb{hint}"


def _explain_several(source: Path, kinds: dict[DirectoryKind, str], others: list[str]) -> str:
    found = [f"{TITLES[kind]} ({name})" for kind, name in kinds.items()]
    options = " or ".join(f"--from {OPTIONS[kind]}" for kind in kinds)
    return f"{source} contains several sources: {', '.join([*found, *others])}. Name the path of one, or use {options}"


def _others(source: Path) -> str:
    """Return a hint that lists the checkpoints in the directory of a missing one."""
    there = sorted(path.stem for path in source.parent.glob("*.index"))
    return f": {source.parent} contains {', '.join(there)}" if there else ""


def _detect_checkpoint(source: Path, has_builder: bool) -> SourceKind:
    """Return the kind of a TensorFlow checkpoint. One of TF2 has an object graph, one of TF1 only names."""
    prefix = find_prefix(source)
    if open_checkpoint(prefix).has_tensor(OBJECT_GRAPH_KEY):
        return "tf2-ckpt"
    return "tf1-ckpt" if has_builder or not prefix.with_name(prefix.name + ".meta").is_file() else "tf1-meta"


def _is_torch(source: Path) -> bool:
    by_name = source.suffix in _TORCH_SUFFIXES or source.name.endswith(INDEX_SUFFIX)
    return by_name or is_torch_archive(source)
