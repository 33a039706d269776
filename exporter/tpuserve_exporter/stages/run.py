"""One export from start to end: its stages in order. Each stage takes the results of earlier stages."""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tpuserve_exporter.checks.labelled_rows import LabelledRows
from tpuserve_exporter.checks.serve_check import find_server
from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.checks.version_graph import check_no_python
from tpuserve_exporter.destinations.destination import open_destination
from tpuserve_exporter.destinations.staging import disk_errors, temporary_disk_errors
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.graphs.operation_libraries import describe_libraries
from tpuserve_exporter.models.weights_check import describe, find_not_finite, named_values, named_variables, not_finite
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.programs.lowering import check_lowering
from tpuserve_exporter.programs.preflight import Preflight
from tpuserve_exporter.signatures.labels import read_labels
from tpuserve_exporter.sources.checkpoint_path import source_errors
from tpuserve_exporter.sources.hugging_face_directory import is_hugging_face, read_class_names
from tpuserve_exporter.sources.kinds import builds_itself, detect, open_as_kind, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.directory import saved_values
from tpuserve_exporter.sources.saved_model.file import check_assigned, check_operations, operations_of
from tpuserve_exporter.stages.checking import check_version, compile_programs, record_answers
from tpuserve_exporter.stages.job import Exported, Job, Warnings
from tpuserve_exporter.stages.publishing import (
    choose_requests,
    describe_version,
    publish_version,
    serve_version,
    warm_version,
)
from tpuserve_exporter.stages.writing import Frozen, Written, freeze_model, write_version
from tpuserve_exporter.terms.progress import Progress
from tpuserve_exporter.version.signing import read_manifest_key
from tpuserve_exporter.version.tflite import check_litert


def run_export(
    options: ExportOptions,
    progress: Progress,
    attach_report: Callable[[Exported, Path], None],
    live: object | None = None,
) -> Exported:
    """Export a version, and publish it unless this is a dry run. Blocks. The caller has started TensorFlow.

    `attach_report` writes the report of a checked version into its directory, before publication. A `live` model
    replaces the source in the options. Raises ExportError, and then publishes nothing and leaves no files.
    """
    job = prepare(options, progress)
    # No variable here refers to the source's own model, so that Python frees it when the frozen model exists.
    frozen = freeze_model(job, open_model(job, live))
    with staging_folder(job, frozen) as folder:
        written = screen_version(job, write_version(job, frozen, folder))
        compiled = compile_programs(job, written)
        recorded = record_answers(job, compiled)
        with job.checks.open(folder) as session:
            checked = check_version(job, recorded, session)
            warmed = warm_version(job, checked, session)
            requests = choose_requests(job, checked)
        described = describe_version(job, warmed)
        served = serve_version(job, described, requests)
        exported = Exported(
            name=job.destination.model_name,
            version=None,
            path=None,
            manifest=described.manifest,
            signatures=checked.signatures,
            restore=written.source.restore,
            warmup_records=warmed.records,
            warnings=job.warnings.messages,
            serve_check=served.answers,
            variables=described.variables,
            preflight=compiled.preflight,
            samples=checked.samples,
            preprocessing=written.preprocessing,
            examples=len(options.examples),
            origins=written.source.origins,
            tables=checked.version.tables,
        )
        attach_report(exported, folder)
        published = publish_version(job, served)
    return replace(exported, version=published.version, path=published.path, published=published.new)


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
    return open_source(detect(options.source, builds_itself(model)), options.source, model)


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


@contextlib.contextmanager
def staging_folder(job: Job, frozen: Frozen) -> Iterator[Path]:
    """Yield a path for the version while the body runs. Raises PublishFailed, also for disk errors in the body."""
    needed_bytes = functools.partial(estimate_size, frozen.source)
    with _open_folder(job) as folder, disk_errors(folder, _place(job.options), needed_bytes):
        yield folder


@contextlib.contextmanager
def _open_folder(job: Job) -> Iterator[Path]:
    """Yield a path next to the versions, to be renamed into place. A dry run uses a temporary directory instead."""
    if not job.options.dry_run:
        with job.destination.staging() as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as elsewhere:
        yield Path(elsewhere, "version")


def _place(options: ExportOptions) -> str:
    base = options.out_base
    return str(base) if isinstance(base, Path) and not options.dry_run else "the temporary directory (TMPDIR)"


def estimate_size(source: OpenedSource) -> int:
    """Estimate the bytes of a version from the source's files or variables."""
    if isinstance(source.model, Path):
        return sum(path.stat().st_size for path in source.model.rglob("*") if path.is_file())
    variables = (variable for _, variable in named_variables(source.model.trackables))
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def prepare(options: ExportOptions, progress: Progress) -> Job:
    """Check the libraries, files and version number that `options` need.

    Raises MissingExtra for a missing library, and PublishFailed for a number that another version has. Raises
    SamplesUnfit for --labelled, BuilderFailed for a function of --expect, and OptionConflict for bad --labels, for a
    bad key, and for a mesh larger than a topology.
    """
    key = None if options.sign is None else read_manifest_key(options.sign)
    destination = open_destination(options.out_base)
    labels = _name_classes(options)
    destination.check(options.version)
    if "tflite" in options.also:
        check_litert()
    if options.device_programs:
        check_lowering()
    tpu = options.tpu
    preflight = Preflight(tpu.topologies, tpu.mesh, tpu.rules, progress) if tpu.topologies else None
    if options.serve_check:
        find_server()
    labelled = None
    if options.labelled is not None:
        with progress.step(f"Read {options.labelled.file.name}"):
            labelled = LabelledRows.open(options.labelled, labels, options.sequences)
    warnings = Warnings(progress)
    checks = Checks(options, progress, warnings.add)
    return Job(options, progress, warnings, destination, labels, checks, preflight, key, labelled)


def _name_classes(options: ExportOptions) -> tuple[str, ...]:
    """Return the names of --labels, or else of a Hugging Face directory without --model.

    Raises OptionConflict, and the errors of a source that cannot be read.
    """
    names = read_labels(options.labels)
    if names or options.model.builder is not None or options.kind not in (None, "huggingface"):
        return names
    with source_errors(options.source):
        return read_class_names(options.source) if is_hugging_face(options.source) else ()


def screen_version(job: Job, written: Written) -> Written:
    """Check the SavedModel. Raises CannotLower for Python functions, and UnsafeOperation."""
    with job.progress.step("Check the operations"):
        check_no_python(written.folder)
        check_assigned(written.folder)
        findings = check_operations(written.folder, job.options.model.allowed_ops)
        needs = describe_libraries(operations_of(written.folder))
    for need in needs:
        job.warnings.add(need)
    if not findings:
        return written
    names = tuple(sorted({one.operation for one in findings}))
    described = "; ".join(map(str, findings))
    job.warnings.add(f"servers load this version only with --allowed_ops={','.join(names)}: {described}")
    return replace(written, allowed_ops=names)
