"""Opens a Keras model: a whole one (`.keras`, `.h5`, Orbax), or the weights (`.weights.h5`) of a builder's model."""

import contextlib
import importlib.util
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuserve_exporter.errors import (
    CheckpointMismatch,
    ExportError,
    MissingExtra,
    OptionConflict,
    SourceUnreadable,
    reason_of,
)
from tpuserve_exporter.models.builder import build_model
from tpuserve_exporter.models.keras_serving import (
    change,
    described_dtype,
    is_changed,
    renew_constants,
    serve_keras,
    serve_keras_2,
)
from tpuserve_exporter.models.served_function import TracedReference
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.keras.archive import KerasArchive, OpenArchive, read_archive
from tpuserve_exporter.sources.keras.custom_objects import import_objects
from tpuserve_exporter.sources.keras.h5_restore import H5Model, restore_h5_averages
from tpuserve_exporter.sources.keras.restoring import restore_model
from tpuserve_exporter.sources.keras.saved_layers import SavedKerasLayers
from tpuserve_exporter.sources.keras.whole_model import load_whole
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.trees.orbax import is_keras
from tpuserve_exporter.sources.variables.matching import model_variables
from tpuserve_exporter.sources.variables.state_matching import check_filled, origins_of_states, restore_states
from tpuserve_exporter.terms.provenance import TRAINED, Origins
from tpuserve_exporter.terms.restore_report import RestoreReport

if TYPE_CHECKING:
    import keras


_BUILD = "Name a function that builds the model, --model pkg.module:function, to load only the weights of the file"
# Errors of files, not of models.
_DAMAGE = (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class _Loaded(NamedTuple):
    model: "keras.Model"
    restore: RestoreReport | None


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Load the model.

    Raises SourceUnreadable, UnsafeSource, MissingExtra, OptionConflict, BuilderFailed, or CheckpointMismatch with a
    report.
    """
    if source.is_dir():
        return _open_orbax(source, options)
    archive = read_archive(source)
    if options.builder is None:
        _check_whole(archive, options)
    with archive.opened() as opened:
        if options.builder is None and archive.is_keras_2 and archive.is_zip:
            return _open_keras_2(opened, options)
        try:
            loaded = _load(opened, options)
        except SourceUnreadable:
            # Keras 3 reads most .h5 files of Keras 2, except those with operations on tensors (TFOpLambda).
            if options.builder is not None or not archive.is_keras_2:
                raise
            return _open_keras_2(opened, options)
        return _open_loaded(source.name, lambda: _load(opened, options), loaded, options)


def _open_loaded(name: str, load: Callable[[], _Loaded], loaded: _Loaded, options: ModelOptions) -> OpenedSource:
    """Return the source of a loaded model. `load` loads it again if the options change the served one."""
    served, quantized = loaded.model, None
    if is_changed(options):
        served = load().model
        quantized = change(served, options)
    return OpenedSource(
        kind="keras",
        name=name,
        model=serve_keras(served, options),
        reference=TracedReference(serve_keras(loaded.model, options)),
        compute_dtype=described_dtype(served),
        builder=options.builder,
        restore=loaded.restore,
        values=_list_values(loaded.model),
        quantized=quantized,
    )


def _open_orbax(source: Path, options: ModelOptions) -> OpenedSource:
    """Load the model of a directory of Keras' callback OrbaxCheckpoint."""
    if not is_keras(source):
        raise SourceUnreadable(f"{source.name} is a directory, but not one of Keras' callback OrbaxCheckpoint")
    from tpuserve_exporter.sources.keras.orbax_directory import KerasOrbaxModel

    stored = KerasOrbaxModel(source)

    def load() -> _Loaded:
        if options.builder is None:
            stored.archive.check_safe(options.unsafe, options.imports)
            with _reading(stored.archive):
                model = stored.build(options)
        else:
            model = build_model(options.builder, options.builder_args)
        report = restore_model(stored, model, options)
        renew_constants(model)
        return _Loaded(model, report)

    return replace(_open_loaded(stored.name, load, load(), options), step=stored.step)


def _check_whole(archive: KerasArchive, options: ModelOptions) -> None:
    """Check that the file holds a model, and that reading it runs no code. Raises OptionConflict or UnsafeSource."""
    if not archive.config:
        raise OptionConflict(
            f"{archive.path.name} contains only weights. Name the function that builds the model with --model"
        )
    if options.renames:
        raise OptionConflict("--rename applies only to weights for your own model. Add --model pkg.module:function")
    archive.check_safe(options.unsafe, options.imports)


def _load(opened: OpenArchive, options: ModelOptions) -> _Loaded:
    if options.builder is None:
        model = _load_model(opened, options)
        restore_states(model, SavedKerasLayers(opened), opened.archive.path.name)
        report = restore_h5_averages(opened, model, options)
    else:
        model = build_model(options.builder, options.builder_args)
        report = restore_model(H5Model(opened), model, options)
    renew_constants(model)
    return _Loaded(model, report)


@contextlib.contextmanager
def _nothing_skipped(source: Path) -> Iterator[None]:
    """Raise CheckpointMismatch if Keras warns that layers keep fresh weights."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    skipped = [str(one.message) for one in caught if "freshly-initialized" in str(one.message)]
    if skipped:
        raise CheckpointMismatch(f"{source.name} lacks weights of the model: {skipped[0]}")


def _load_model(opened: OpenArchive, options: ModelOptions) -> "keras.Model":
    import keras

    archive = opened.archive
    with _reading(archive), _nothing_skipped(archive.path):
        if opened.folder is not None:
            return load_whole(archive.config, opened.folder, options)
        keras.backend.clear_session()
        custom = import_objects(options.imports)
        return keras.saving.load_model(archive.path, compile=False, safe_mode=not options.unsafe, custom_objects=custom)


@contextlib.contextmanager
def _reading(archive: KerasArchive) -> Iterator[None]:
    """Turn every error into SourceUnreadable, with a hint at --model unless the file is damaged."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        name = archive.path.name
        if (unknown := _unregistered(error)) is not None:
            raise SourceUnreadable(
                f"{name} needs {unknown}, which is not registered with Keras. Import the module that defines it, "
                f"--import pkg.module. Or name{_BUILD.removeprefix('Name')}"
            ) from error
        hint = "" if isinstance(error, _DAMAGE) else f". {_BUILD}"
        raise SourceUnreadable(f"cannot read {name}: {reason_of(error).removesuffix('.')}{hint}") from error


def _unregistered(error: Exception) -> str | None:
    """Return the class or function that Keras could not find, taken from its message, or None."""
    text = str(error)
    if found := re.search(r"Could not locate (class|function) '([^']+)'", text):
        return f"the {found[1]} {found[2]}"
    found = re.search(r"Unknown (layer|activation function|object)[^:]*: '?([\w>]+)'?", text)
    return None if found is None else f"the {'class' if found[1] == 'layer' else 'function'} {found[2]}"


def _open_keras_2(opened: OpenArchive, options: ModelOptions) -> OpenedSource:
    """Load the model with Keras 2 itself, tf_keras."""
    archive = opened.archive
    if importlib.util.find_spec("tf_keras") is None:
        raise MissingExtra(
            f"{archive.path.name} was written by Keras {archive.keras_version} and needs tf_keras. Run pip install "
            "tf-keras, or name a function that builds the model in Keras 3 with --model pkg.module:function"
        )
    if is_changed(options):
        raise OptionConflict(
            "--compute-dtype and --int8 apply only to Keras 3 models. Build the model in Keras 3 with --model"
        )
    model = _load_keras_2(archive, options)
    check_filled(model, archive.path.name)
    averaged = restore_h5_averages(opened, model, options)
    function = serve_keras_2(model, options)
    return OpenedSource(
        kind="keras",
        name=archive.path.name,
        model=function,
        reference=TracedReference(function),
        compute_dtype=described_dtype(model),
        restore=averaged,
        values=_list_values(model),
    )


def _list_values(model: Any) -> Origins:  # noqa: ANN401 - a model of Keras 2 or 3
    """Return the origins of the values that Keras itself reads with a model."""
    return {**dict.fromkeys((one.name for one in model_variables(model)), TRAINED), **origins_of_states(model)}


def _load_keras_2(archive: KerasArchive, options: ModelOptions) -> Any:  # noqa: ANN401 - a Keras 2 model is untyped
    import tf_keras

    with _reading(archive):
        return tf_keras.models.load_model(
            archive.path, compile=False, safe_mode=not options.unsafe, custom_objects=import_objects(options.imports)
        )
