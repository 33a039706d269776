"""A Keras file opened without Keras: its version, its configuration, and the HDF5 file inside.

This module runs no code from the file. The exporter must know whether a file is safe before Keras reads it.
"""

import contextlib
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import SourceUnreadable, UnsafeSource, reason_of
from tpuserve_exporter.sources.keras.hdf5_values import find_inflated
from tpuserve_exporter.sources.keras.sharded_group import ShardedGroup
from tpuserve_exporter.sources.keras.unpacking import WEIGHTS, check_content, unpack
from tpuserve_exporter.sources.keras.unsafe_content import find_other_files, find_unsafe_config

if TYPE_CHECKING:
    import h5py

_MOST_SHOWN = 5
_INDEX = ".json"
_LAMBDA = "Lambda layer "
_CONFIG, _METADATA = "config.json", "metadata.json"


@dataclass(frozen=True, slots=True)
class KerasArchive:
    """A `.keras` or `.h5` file, with the model's `config` and the optimizer's. Each is empty if the file has none.

    The weights of an index (`.weights.json`) are in several HDF5 files, `shards`.
    """

    path: Path
    keras_version: str
    config: dict[str, Any]
    optimizer: dict[str, Any]
    shards: Sequence[Path] = ()

    @property
    def is_zip(self) -> bool:
        """Whether the file is an archive of several files, as `.keras` is."""
        return self.path.suffix not in (".h5", _INDEX)

    @property
    def is_keras_2(self) -> bool:
        return self.keras_version.startswith("2.")

    def check_safe(self, unsafe: bool, trusted: Sequence[str] = ()) -> None:
        """Raise UnsafeSource if reading the model would run code from the file, unless `unsafe` is set.

        The user has named the `trusted` modules, from which Keras 2 may take classes.
        """
        found = sorted(set(find_unsafe_config(self.config, self.is_keras_2, trusted)))
        if not found or unsafe:
            return
        layers = [one.removeprefix(_LAMBDA) for one in found if one.startswith(_LAMBDA)]
        what = f"more than layers of Keras ({', '.join(found)}): reading it could run code or read other files"
        if len(layers) == len(found):
            names = ", ".join(layers)
            what = f"Lambda layers ({names}): Python code that would run with all your rights while the file is read"
        elif self.is_keras_2:
            what += ". If the classes are your own, name their module, --import pkg.module"
        raise UnsafeSource(
            f"{self.path.name} contains {what}. Build the model with your own function, --model pkg.module:function, "
            "so that only the weights are read. If you trust the file's author, use --unsafe",
            layers=layers or found,
        )

    @contextlib.contextmanager
    def opened(self) -> "Iterator[OpenArchive]":
        """Open the file's content, and unpack a `.keras` file for as long as the context lasts.

        Raises SourceUnreadable, and UnsafeSource if the weights refer to other files.
        """
        with contextlib.ExitStack() as opened:
            with reading(self.path):
                folder = None
                if self.is_zip:
                    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tpuserve-keras-")))
                    unpack(self.path, folder)
                paths = self.shards or [self.path if folder is None else folder / WEIGHTS]
                files = [opened.enter_context(_open_hdf5(path)) for path in paths]
                others = [other for file in files for other in find_other_files(file)]
                inflated = [one for file in files for one in find_inflated(file)]
            if others:
                raise UnsafeSource(
                    f"{self.path.name} refers to other files ({', '.join(others[:_MOST_SHOWN])}), which the exporter "
                    "does not read. Save the model again, with all weights in one file",
                    files=others,
                )
            if inflated:
                raise SourceUnreadable(f"{self.path.name} is damaged or forged: {inflated[0]}. Copy or save it again")
            yield OpenArchive(self, ShardedGroup(files) if self.shards else files[0], folder)


@dataclass(frozen=True, slots=True)
class OpenArchive:
    """An archive with its open HDF5 file `weights`, and the `folder` with the files of a `.keras` archive."""

    archive: KerasArchive
    weights: "h5py.File | ShardedGroup"
    folder: Path | None


def read_archive(path: Path) -> KerasArchive:
    """Read a file's version and configuration. Raises SourceUnreadable if it is of another format or damaged."""
    with reading(path):
        if path.suffix == _INDEX:
            return _read_index(path)
        return _read_h5(path) if path.suffix == ".h5" else _read_zip(path)


def is_index(path: Path) -> bool:
    """Return whether a file is the index of Keras' sharded weights. An index of safetensors has other files."""
    names = _list_shards(path) if path.suffix == _INDEX else []
    return bool(names) and all(name.endswith(".h5") for name in names)


def _list_shards(path: Path) -> list[str]:
    """Return the names of files in an index: a group of variables has one name, or a list. Empty for other files."""
    try:
        groups = json.loads(path.read_text())["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted({str(name) for names in groups for name in (names if isinstance(names, list) else [names])})


def _read_index(path: Path) -> KerasArchive:
    names = _list_shards(path)
    if others := [name for name in names if Path(name).name != name]:
        raise UnsafeSource(f"{path.name} refers to files outside its directory: {', '.join(others[:_MOST_SHOWN])}")
    shards = [path.with_name(name) for name in names]
    if missing := [one.name for one in shards if not one.is_file()]:
        raise SourceUnreadable(f"{path.name} lacks {', '.join(missing[:_MOST_SHOWN])}. Copy all files of it again")
    return KerasArchive(path, "3", {}, {}, shards)


def _read_zip(path: Path) -> KerasArchive:
    with zipfile.ZipFile(path) as archive:
        check_content(path, archive)
        config = json.loads(archive.read(_CONFIG))
        version = json.loads(archive.read(_METADATA)).get("keras_version", "")
    return describe_config(path, config, version)


def describe_config(path: Path, config: dict[str, Any], version: str = "") -> KerasArchive:
    """Return the archive of a configuration that Keras 3, or the last Keras 2, wrote."""
    compiled = config.get("compile_config") or {}
    return KerasArchive(path, version, config, _optimizer(compiled.get("optimizer")))


def _read_h5(path: Path) -> KerasArchive:
    import h5py

    with h5py.File(path, "r") as file:
        # Keras reads the configuration of the file itself.
        attributes = {**(file["model_weights"].attrs if "model_weights" in file else {}), **file.attrs}
    config = json.loads(attributes.get("model_config", "{}"))
    training = json.loads(attributes.get("training_config", "{}"))
    return KerasArchive(
        path, str(attributes.get("keras_version", "")), config, _optimizer(training.get("optimizer_config"))
    )


def _optimizer(config: object) -> dict[str, Any]:
    """Return an optimizer's settings, or an empty dictionary if the file has only its name."""
    found = config.get("config") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


# HDF5's messages for incomplete files.
_NOT_WHOLE = ("truncated file", "file signature not found")


def _open_hdf5(path: Path) -> "h5py.File":
    """Open an HDF5 file. Raises OSError. h5py's import takes long."""
    import h5py

    return h5py.File(path, "r")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn zip, HDF5 and JSON errors for damaged files into SourceUnreadable."""
    try:
        yield
    # zipfile raises RuntimeError for encrypted content and for unknown compression.
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        known = error.strerror if isinstance(error, OSError) else None
        reason = known or reason_of(error).replace(f"{path.parent}/", "")
        if isinstance(error, zipfile.BadZipFile | zlib.error | KeyError) or any(
            words in reason for words in _NOT_WHOLE
        ):
            kind = "an HDF5 file" if path.suffix == ".h5" else "a .keras archive"
            reason = f"it is truncated or not {kind}. Copy or save it again"
        raise SourceUnreadable(f"cannot read {path.name}: {reason}") from error
