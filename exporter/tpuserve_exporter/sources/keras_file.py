"""A Keras file: a whole model (`.keras`, `.h5`), or the weights (`.weights.h5`) of a model the builder makes."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.builder import build_model
from tpuserve_exporter.errors import CheckpointMismatch, ExportError, OptionConflict, SourceUnreadable, reason_of
from tpuserve_exporter.keras_inputs import build_weights
from tpuserve_exporter.keras_serving import described_dtype, serve_keras, with_compute_dtype
from tpuserve_exporter.options import ModelOptions
from tpuserve_exporter.served_function import TracedReference
from tpuserve_exporter.sources.opened import OpenedSource

if TYPE_CHECKING:
    import keras


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Load the model. Raises SourceUnreadable, OptionConflict, and CheckpointMismatch where weights do not fit."""
    model = served = _load(source, options)
    if options.compute_dtype != "keep":
        served = with_compute_dtype(_load(source, options), options.compute_dtype)
    return OpenedSource(
        kind="keras",
        name=source.name,
        model=serve_keras(served, options),
        reference=TracedReference(serve_keras(model, options)),
        compute_dtype=described_dtype(served),
        builder=options.builder,
    )


def _load(source: Path, options: ModelOptions) -> "keras.Model":
    if options.builder is not None:
        return _load_weights(source, options)
    if source.name.endswith(".weights.h5"):
        raise OptionConflict(f"{source.name} holds weights alone: name the function that builds the model, --model")
    return _load_model(source)


@contextlib.contextmanager
def _nothing_skipped(source: Path) -> Iterator[None]:
    """Keras only warns where it leaves layers with fresh weights: that is a mismatch here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    skipped = [str(one.message) for one in caught if "freshly-initialized" in str(one.message)]
    if skipped:
        raise CheckpointMismatch(f"{source.name} lacks weights of the model: {skipped[0]}")


def _load_model(source: Path) -> "keras.Model":
    import keras

    keras.backend.clear_session()
    try:
        with _nothing_skipped(source):
            return keras.saving.load_model(source, compile=False)
    except ExportError:
        raise
    except Exception as error:  # zip, HDF5 and JSON errors, unregistered classes, lambdas: all mean it cannot be read
        hint = " (its own classes are imported by --model pkg.module:function)" if isinstance(error, TypeError) else ""
        raise SourceUnreadable(f"cannot read {source.name}: {reason_of(error)}{hint}") from error


def _load_weights(source: Path, options: ModelOptions) -> "keras.Model":
    assert options.builder is not None
    model = build_model(options.builder, options.builder_args)
    build_weights(model, options)
    try:
        with _nothing_skipped(source):
            model.load_weights(source)
    except ExportError:
        raise
    except (ValueError, KeyError) as error:
        raise CheckpointMismatch(
            f"{source.name} does not fit the model that {options.builder} builds: {reason_of(error)}"
        ) from error
    except Exception as error:  # zip and HDF5 errors
        raise SourceUnreadable(f"cannot read {source.name}: {reason_of(error)}") from error
    return model
