"""One export from start to end: its stages in order. Each stage takes the results of earlier stages."""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tpuserve_exporter.checks.serve_check import ServeCheck, ServedRequest, check_serving, find_server, make_requests
from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.checks.version_graph import check_no_python
from tpuserve_exporter.destinations.destination import open_destination
from tpuserve_exporter.destinations.staging import disk_errors, temporary_disk_errors
from tpuserve_exporter.errors import OptionConflict, source_errors
from tpuserve_exporter.inspection.checkpoint import list_served
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.models.weights_check import describe, find_not_finite, named_values, named_variables, not_finite
from tpuserve_exporter.options.export_options import ExportOptions, TpuOptions
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.programs.lowering import check_lowering
from tpuserve_exporter.programs.preflight import Preflight
from tpuserve_exporter.signatures.labels import read_labels
from tpuserve_exporter.sources.kinds import detect, open_as_kind, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.directory import saved_values
from tpuserve_exporter.sources.saved_model.file import check_operations
from tpuserve_exporter.stages.checking import Checked, check_version, compile_programs, record_answers
from tpuserve_exporter.stages.job import Exported, Job, Warnings
from tpuserve_exporter.stages.manifest import make_manifest
from tpuserve_exporter.stages.writing import Frozen, Written, freeze_model, write_version
from tpuserve_exporter.terms.progress import Progress
from tpuserve_exporter.terms.sample_files import open_samples
from tpuserve_exporter.terms.samples import check_lengths, read_samples
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.fingerprint import holds
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_exporter.version.manifest import write_manifest
from tpuserve_exporter.version.signing import is_signed_by, read_key, sign_version
from tpuserve_exporter.version.tflite import check_litert
from tpuserve_exporter.version.warmup import WARMUP_FILE, keep_warmup, write_warmup
from tpuserve_formats.manifest.version import Manifest
from tpuserve_formats.signing.keys import key_id


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


@dataclass(frozen=True, slots=True)
class Warmed:
    """A checked version with `records` warm-up requests."""

    checked: Checked
    records: int


def warm_version(job: Job, checked: Checked, session: SessionModel) -> Warmed:
    """Write the requests, or keep the source's own, and run each in `session`. Raises SamplesUnfit."""
    options, folder = job.options, checked.written.folder
    if options.warmup is None and (folder / WARMUP_FILE).exists():
        with job.progress.step("Run the source's own warm-up requests"):
            everywhere = checked.version.everywhere
            return Warmed(checked, keep_warmup(folder, session, everywhere, options.sequences, job.warnings.add))
    with job.progress.step("Write warm-up requests") as step:
        name, inputs = job.destination.model_name, _choose_inputs(job, checked, session)
        records = write_warmup(folder, name, inputs, options.batch_sizes, session)
        step.detail = f"{records} record(s)"
        return Warmed(checked, records)


def _choose_inputs(job: Job, checked: Checked, session: SessionModel) -> Iterator[tuple[Signature, Tensors]]:
    options, version = job.options, checked.version
    file = None if options.warmup is None else open_samples(options.warmup, options.sequences.pad_values)
    for one in (version.signatures[name] for name in version.everywhere):
        rows = max(options.batch_sizes)
        samples = one.samples if file is None else read_samples(file, one.signature, rows, session)
        check_lengths(one.signature, samples, options.sequences, "--warmup")
        yield one.signature, samples


@dataclass(frozen=True, slots=True)
class Described:
    """A version with all its files. `variables` lists the variables in them."""

    checked: Checked
    manifest: Manifest
    variables: tuple[StoredArray, ...]

    @property
    def folder(self) -> Path:
        return self.checked.written.folder


def describe_version(job: Job, warmed: Warmed) -> Described:
    """Read every file for its hash, and write the manifest."""
    checked = warmed.checked
    folder = checked.written.folder
    variables = list_served(folder)
    with job.progress.step("Hash every file") as step:
        manifest = make_manifest(checked, job.options, step.advance)
        write_manifest(manifest, folder)
        step.detail = f"{len(manifest.files)} file(s)"
    return Described(checked, manifest, variables)


@dataclass(frozen=True, slots=True)
class Served:
    """A version that is ready to publish. `answers` is None without --serve-check."""

    described: Described
    answers: ServeCheck | None = None


def choose_requests(job: Job, checked: Checked) -> Sequence[ServedRequest]:
    """Choose the requests to the server. The checks' session must be open: it may compute the expected outputs."""
    return make_requests(checked.version, job.options.batch_sizes) if job.options.serve_check else ()


def serve_version(job: Job, described: Described, requests: Sequence[ServedRequest]) -> Served:
    """Start a server and compare its predictions. Blocks. Raises MissingExtra, SessionLoadFailed or ParityFailed."""
    if not job.options.serve_check:
        return Served(described)
    with job.progress.step("Serve the version and compare its answers") as step:
        tolerance = described.checked.version.tolerance
        name, allowed = job.destination.model_name, described.manifest.allowed_ops
        answers = check_serving(described.folder, name, requests, tolerance, allowed)
        step.detail = str(answers)
    return Served(described, answers)


@dataclass(frozen=True, slots=True)
class Published:
    """The version with the exported content. `version` and `path` are None after a dry run.

    If not `new`, the version existed before this export.
    """

    version: int | None = None
    path: OutBase | None = None
    new: bool = True


def publish_version(job: Job, served: Served) -> Published:
    """Publish the version, unless this is a dry run or the version exists. Raises PublishFailed."""
    options, described = job.options, served.described
    same = None if options.dry_run or options.again else _find_same(job, described.manifest)
    if same is not None:
        return Published(same, job.destination.locate(same), new=False)
    return Published() if options.dry_run else _publish(job, described.folder)


def _find_same(job: Job, manifest: Manifest) -> int | None:
    """Return the newest version's number if it has the same content, and with --sign a signature by the same key.

    Return None for an explicit --version.
    """
    newest = None if isinstance(job.options.version, int) else job.destination.newest()
    if newest is None or not holds(newest, manifest):
        return None
    needs_signature = job.key is not None and not is_signed_by(newest, job.key, job.destination.model_name)
    return None if needs_signature else newest.number


def _publish(job: Job, folder: Path) -> Published:
    with job.progress.step("Publish") as step:
        version = job.destination.publish(folder, job.options.version, functools.partial(_seal, job, folder))
        path = job.destination.locate(version)
        step.detail = str(path) if job.key is None else f"{path}, signed by {key_id(job.key.public_key())}"
    return Published(version, path)


def _seal(job: Job, folder: Path, number: int) -> None:
    if job.key is not None:
        sign_version(folder, job.destination.model_name, number, job.key)


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
    OptionConflict for bad --labels, for a bad key, and for a mesh larger than a topology.
    """
    key = None if options.sign is None else read_key(options.sign)
    destination = open_destination(options.out_base)
    labels = read_labels(options.labels)
    destination.check(options.version)
    if "tflite" in options.also:
        check_litert()
    if options.device_programs:
        check_lowering()
    preflight = _prepare_preflight(options.tpu, progress)
    if options.serve_check:
        find_server()
    warnings = Warnings(progress)
    checks = Checks(options, progress, warnings.add)
    return Job(options, progress, warnings, destination, labels, checks, preflight, key)


def _prepare_preflight(tpu: TpuOptions, progress: Progress) -> Preflight | None:
    return Preflight(tpu.topologies, tpu.mesh, tpu.rules, progress) if tpu.topologies else None


def screen_version(job: Job, written: Written) -> Written:
    """Check the SavedModel. Raises CannotLower for Python functions, and UnsafeOperation."""
    with job.progress.step("Check the operations"):
        check_no_python(written.folder)
        findings = check_operations(written.folder, job.options.model.allowed_ops)
    if not findings:
        return written
    names = tuple(sorted({one.operation for one in findings}))
    described = "; ".join(map(str, findings))
    job.warnings.add(f"servers load this version only with --allowed_ops={','.join(names)}: {described}")
    return replace(written, allowed_ops=names)


def run_export(
    options: ExportOptions,
    progress: Progress,
    attach_report: Callable[[Exported, Path], None],
    live: object | None = None,
) -> Exported:
    """Export a version, and publish it unless this is a dry run. Blocks. The caller has started TensorFlow.

    `attach_report` writes the report of a checked version into its directory, before publication. A `live` model
    replaces the source in the options. Raises ExportError, and then publishes nothing and leaves no files.
    `tensorflow_start` starts TensorFlow.
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
        )
        attach_report(exported, folder)
        published = publish_version(job, served)
    return replace(exported, version=published.version, path=published.path, published=published.new)
