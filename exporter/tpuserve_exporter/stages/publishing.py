"""The stages that complete a version: warm-up requests, manifest, check by a server, publication."""

import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tpuserve_exporter.checks.serve_check import ServeCheck, ServedRequest, check_serving, make_requests
from tpuserve_exporter.inspection.checkpoint import list_served
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.signatures.labels import LABELS_FILE
from tpuserve_exporter.stages.checking import Checked
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.terms.sample_rows import open_samples
from tpuserve_exporter.terms.samples import check_lengths, read_samples
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.fingerprint import holds, make_fingerprint
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_exporter.version.manifest import describe_files, describe_origins, describe_signature, write_manifest
from tpuserve_exporter.version.signing import is_signed_by, sign_version
from tpuserve_exporter.version.warmup import keep_warmup, write_warmup
from tpuserve_exporter.version.warmup_records import WARMUP_FILE
from tpuserve_formats.manifest.version import (
    Manifest,
    ManifestCpu,
    ManifestParity,
    ManifestQuantized,
    ManifestSignatureParity,
    ManifestSource,
)
from tpuserve_formats.signing.keys import key_id


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


def make_manifest(checked: Checked, options: ExportOptions, advance: Callable[[int, int], None]) -> Manifest:
    """Describe a version whose other files are all written. Reads every file for its hash."""
    written, version = checked.written, checked.version
    source = written.source
    parities = [one.parity for one in version.signatures.values()]
    files = describe_files(written.folder, advance)
    signatures = {
        name: describe_signature(
            one.signature, one.samples, options.batch_sizes, one.rows_independent, options.sequences, one.deterministic
        )
        for name, one in version.signatures.items()
    }
    return Manifest(
        exporter_version=importlib.metadata.version("tpuserve-exporter"),
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=ManifestSource(
            kind=source.kind,
            name=source.name,
            step=source.step,
            builder=source.builder,
            provenance=describe_origins(source.origins),
        ),
        compute_dtype=version.compute_dtype,
        cpu=ManifestCpu(allow_bfloat16_kernels="bfloat16" in version.compute_dtype),
        signatures=signatures,
        parity=ManifestParity(
            max_abs_difference=max(parity.max_abs_difference for parity in parities),
            atol=version.tolerance.atol,
            rtol=version.tolerance.rtol,
            rows=max(parity.rows for parity in parities),
            signatures={
                name: ManifestSignatureParity.model_validate(one.parity.to_json())
                for name, one in version.signatures.items()
            },
        ),
        evaluation=checked.evaluation,
        quantized=None if source.quantized is None else ManifestQuantized(**asdict(source.quantized)),
        frozen=written.freezing,
        allowed_ops=written.allowed_ops,
        fingerprint=make_fingerprint(written.folder, signatures, version.compute_dtype, files, checked.device),
        labels=LABELS_FILE.as_posix() if LABELS_FILE.as_posix() in files else None,
        device=checked.device,
        files=dict(files),
    )
