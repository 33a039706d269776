"""The stage that reads the source."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np

from tpuserve_exporter.destinations.disk_errors import temporary_disk_errors
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.weights_check import describe, find_not_finite, named_values, not_finite
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.sources.detect import detect
from tpuserve_exporter.sources.kinds import open_as_kind, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.directory import saved_values
from tpuserve_exporter.sources.unreadable import source_errors
from tpuserve_exporter.stages.job import Job


def open_model(job: Job, live: object | None) -> OpenedSource:
    """Open the source, or a `live` model instead.

    Raises the errors of its kind, OptionConflict for options that the source does not take, and WeightsNotFinite.
    """
    options = job.options
    with job.progress.step("Read the source") as step, temporary_disk_errors(), source_errors(options.source):
        source = _open_kind(options, live)
        if source.quantized is not None and "tflite" in options.also:
            raise OptionConflict(
                "TensorFlow Lite cannot convert a model that Keras has quantized. Omit --int8 or --also tflite"
            )
        at_step = "" if source.step is None else f" at step {source.step}"
        restored = "" if source.restore is None else f"; {source.restore.summary()}"
        step.detail = f"{source.kind} {source.name}{at_step}{restored}"
    for note in (*source.notes, *(source.restore.notes if source.restore else ())):
        job.warnings.add(note)
    _check_weights(job, source)
    return source


def _open_kind(options: ExportOptions, live: object | None) -> OpenedSource:
    if live is not None:
        return replace(open_live(live, options.model), live=True)
    model = replace(options.model, as_function=bool(options.signatures or options.batching))
    if options.kind is not None:
        return open_as_kind(options.kind, options.source, model)
    return open_source(detect(options.source, model.builder is not None), options.source, model)


def _check_weights(job: Job, source: OpenedSource) -> None:
    """Raise WeightsNotFinite for NaN or infinite weights, unless the options allow them."""
    model = source.model
    values = saved_values(model) if isinstance(model, Path) else named_values(model.trackables)
    scalars = {} if source.jax is None else source.jax.scalars
    with job.progress.step("Check the weights for NaN"):
        found = find_not_finite(itertools.chain(values, ((name, np.asarray(one)) for name, one in scalars.items())))
    if found and not job.options.model.allow_nan:
        raise not_finite(found)
    if found:
        job.warnings.add(describe(found))
