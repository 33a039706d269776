"""The stages that freeze the model, and write its files: the SavedModel, the model for LiteRT, programs for TPUs."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tpuserve_exporter.graphs.freeze import freeze
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.programs.device_programs import ModelToLower, describe_programs, list_wide, write_programs
from tpuserve_exporter.programs.to_lower import lower_part, lower_saved_model
from tpuserve_exporter.signatures.in_graph_batching import batch_calls
from tpuserve_exporter.signatures.kinds import serve_signatures
from tpuserve_exporter.signatures.labels import write_labels
from tpuserve_exporter.signatures.served_signature import DevicePart, ServedSignature, WrappedReference
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.directory import copy_saved_model
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.terms.texts import megabytes
from tpuserve_exporter.version.saved_model_writer import write_saved_model
from tpuserve_exporter.version.tflite import TFLITE_FILE, convert_saved_model, write_tflite
from tpuserve_formats.manifest.device import ManifestDevice
from tpuserve_formats.manifest.version import ManifestFreezing


@dataclass(frozen=True, slots=True)
class Frozen:
    """A source with the model to write. `freezing` is None if this is the source's own model."""

    source: OpenedSource
    freezing: ManifestFreezing | None = None


def freeze_model(job: Job, opened: OpenedSource) -> Frozen:
    """Fold the operations that depend only on weights. Raises CannotLower and BuilderFailed."""
    if not job.options.model.freeze or isinstance(opened.model, Path):
        return Frozen(opened)
    with job.progress.step("Fold batch norms and constants") as step:
        frozen = freeze(opened.model)
        freezing = ManifestFreezing(folded=frozen.folded, computed=frozen.computed, dropped=dict(frozen.dropped))
        step.detail = str(freezing)
    return Frozen(replace(opened, model=frozen.function), freezing)


@dataclass(frozen=True, slots=True)
class Written:
    """A version in `folder` with the files of its model.

    The reference of `source` computes every signature. `preprocessing` has a sentence for each preparation of inputs
    that the exporter chose itself. `device` describes the programs for TPUs, if there are any. `allowed_ops` are its
    operations that servers refuse and --allow-op permits.
    """

    folder: Path
    source: OpenedSource
    freezing: ManifestFreezing | None
    preprocessing: tuple[str, ...] = ()
    device: ManifestDevice | None = None
    allowed_ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _SavedModel:
    """A written SavedModel. `convert` writes its model for LiteRT, and `to_lower` yields the parts to lower."""

    source: OpenedSource
    convert: Callable[[], int]
    to_lower: contextlib.AbstractContextManager[ModelToLower]
    preprocessing: tuple[str, ...] = ()


def write_version(job: Job, frozen: Frozen, folder: Path) -> Written:
    """Write `frozen` into `folder`. Raises ExportError for a model that cannot be written."""
    options = job.options
    with job.progress.step("Write the SavedModel") as step:
        saved = _write_saved_model(job, frozen.source, folder)
        write_labels(folder, job.labels)
        size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        step.detail = "; ".join([megabytes(size_bytes), *saved.preprocessing])
    if "tflite" in options.also:
        with job.progress.step(f"Write {TFLITE_FILE}") as step:
            step.detail = megabytes(saved.convert())
    device = _write_programs(job, saved, folder) if options.device_programs else None
    return Written(folder, saved.source, frozen.freezing, saved.preprocessing, device)


def _write_saved_model(job: Job, source: OpenedSource, folder: Path) -> _SavedModel:
    if isinstance(source.model, Path):
        copy_saved_model(source.model, folder, job.options.source)
        return _SavedModel(source, functools.partial(convert_saved_model, folder), lower_saved_model(folder))
    device = DevicePart(source.model)
    signatures = _write_signatures(job, device, folder)
    convert = functools.partial(write_tflite, folder, device, signatures.values())
    to_lower = contextlib.nullcontext(lower_part(device, source.jax, signatures))
    preprocessing = tuple(dict.fromkeys(one.note for one in signatures.values() if one.note))
    source = replace(source, reference=WrappedReference(signatures, device, source.reference))
    return _SavedModel(source, convert, to_lower, preprocessing)


def _write_signatures(job: Job, device: DevicePart, folder: Path) -> Mapping[str, ServedSignature]:
    options = job.options
    requests = options.signatures or (SignatureRequest(options.model.signature_name),)
    signatures = serve_signatures(requests, device, options.sequences.pad_values, job.labels)
    for warning in dict.fromkeys(one.warning for one in signatures.values() if one.warning):
        job.warnings.add(warning)
    call = batch_calls(device, options.batching, options.batch_sizes) if options.batching else device.call
    write_saved_model(folder, device, call, signatures.values())
    return signatures


def _write_programs(job: Job, saved: _SavedModel, folder: Path) -> ManifestDevice:
    sizes, sequences, dtype = job.options.batch_sizes, job.options.sequences, saved.source.compute_dtype
    with saved.to_lower as model:
        with job.progress.step("Lower the model for a TPU") as step:
            device = write_programs(folder, model, sizes, sequences, dtype, step.advance)
            step.detail = describe_programs(folder, device)
        for warning in list_wide(folder, device):
            job.warnings.add(warning)
        for reason in model.left_out:
            job.warnings.add(f"{reason}. This signature runs on the CPU")
    return device
