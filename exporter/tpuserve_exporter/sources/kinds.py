"""The kinds of source: the module that opens each, and the packages that it needs."""

import contextlib
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import ExportError, MissingExtra, OptionConflict, SourceUnreadable
from tpuserve_exporter.options.export_options import ModelOptions, SourceKind
from tpuserve_exporter.sources.detect import detect
from tpuserve_exporter.sources.opened import OpenedSource

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
        Kind("keras", "a .keras or .h5 file", "keras.file"),
        Kind("orbax", "an Orbax checkpoint", "orbax.checkpoint", "jax", ("jax", "flax", "orbax")),
        Kind(
            "torch",
            "a PyTorch model (.pt, .pt2 or safetensors)",
            "torch.file",
            extra="torch",
            packages=("torch", "torchax", "safetensors", "jax"),
        ),
        Kind("savedmodel", "a SavedModel", "saved_model.directory"),
    )
}

# Kinds that may hold a Keras 3 model. Only these take --int8.
_QUANTIZED = frozenset({"tf2-ckpt", "keras"})


def open_source(kind: SourceKind, source: Path, options: ModelOptions) -> OpenedSource:
    """Read the source. Raises MissingExtra, OptionConflict, or another ExportError of the kind's module."""
    require_packages(kind, source.name)
    if options.int8 and kind not in _QUANTIZED:
        raise OptionConflict(
            f"--int8 quantizes only Keras models, but {source.name} is {KINDS[kind].title}. Quantize the model in "
            "its own framework before the export, or omit --int8"
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
        return detect(source, options.builder is not None)
    return None


def require_packages(kind: SourceKind, name: str) -> None:
    """Raise MissingExtra if packages that the kind needs are not installed. `name` is the source's name."""
    wanted = KINDS[kind]
    missing = [package for package in wanted.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingExtra(
            f"{name} is {wanted.title} and needs {', '.join(missing)} (pip install 'tpuserve-exporter[{wanted.extra}]')"
        )
