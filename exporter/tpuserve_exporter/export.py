"""One export from beginning to end: open the source, write, check, warm, describe, publish. Failed, it leaves nothing."""

import contextlib
import importlib.metadata
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.loaded_model import PythonModel, Runnable, SessionModel, open_session
from tpuserve_exporter.manifest import (
    Manifest,
    ManifestCpu,
    ManifestParity,
    ManifestSignature,
    ManifestSource,
    describe_files,
)
from tpuserve_exporter.options import ExportOptions
from tpuserve_exporter.parity import ParityResult, Tolerance, check_parity
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.publish import check_free, publish, staging_directory
from tpuserve_exporter.restore_report import RestoreReport
from tpuserve_exporter.row_independence import find_dependence
from tpuserve_exporter.samples import find_samples, read_samples
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.sources.detect import detect
from tpuserve_exporter.sources.keras_file import open_keras_file
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model import open_saved_model
from tpuserve_exporter.sources.tf2_checkpoint import open_tf2_checkpoint
from tpuserve_exporter.warmup import WARMUP_FILE, write_warmup

_OPENERS = {"tf2-ckpt": open_tf2_checkpoint, "keras": open_keras_file, "savedmodel": open_saved_model}


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. `version` and `path` are None after a dry run."""

    version: int | None
    path: Path | None
    manifest: Manifest
    signatures: Mapping[str, Signature]
    restore: RestoreReport | None
    warmup_records: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Checked:
    """What the checks found of a written version."""

    signatures: Mapping[str, Signature]
    samples: Mapping[str, Tensors]
    parity: Mapping[str, ParityResult]
    tolerance: Tolerance
    dependence: Mapping[str, str]
    compute_dtype: str


class Export:
    """Runs one export; TensorFlow must be up (tensorflow_start). Blocks; use once."""

    def __init__(self, options: ExportOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._warnings: list[str] = []

    def run(self) -> Exported:
        """Publish a version, unless dry-running. Raises ExportError with nothing published and nothing left behind."""
        options = self._options
        check_free(options.out_base, options.version)
        source = self._open()
        with self._staging() as staged:
            self._write(source, staged)
            checked = self._check(source, staged)
            records = self._warm(staged, checked)
            manifest = self._describe(source, staged, checked)
            version = None if options.dry_run else self._publish(staged)
        path = None if version is None else options.out_base / str(version)
        return Exported(
            version, path, manifest, checked.signatures, source.restore, records, tuple(self._warnings)
        )  # fmt: skip

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        self._progress.warn(message)

    def _open(self) -> OpenedSource:
        options = self._options
        with self._progress.step("Read the source") as step:
            kind = options.kind or detect(options.source)
            source = _OPENERS[kind](options.source, options.model)
            at_step = "" if source.step is None else f" at step {source.step}"
            restored = "" if source.restore is None else f"; {source.restore.summary()}"
            step.detail = f"{source.kind} {source.name}{at_step}{restored}"
        for note in (*source.notes, *(source.restore.notes if source.restore else ())):
            self._warn(note)
        return source

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """Beside the versions, to be renamed into place; a dry run does not touch the base at all."""
        if not self._options.dry_run:
            with staging_directory(self._options.out_base) as staged:
                yield staged
            return
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere, "version")

    def _write(self, source: OpenedSource, staged: Path) -> None:
        with self._progress.step("Write the SavedModel") as step:
            source.write(staged)
            size_bytes = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
            step.detail = f"{size_bytes / 1e6:.1f} MB"

    def _check(self, source: OpenedSource, staged: Path) -> _Checked:
        with contextlib.ExitStack() as open_models:
            with self._progress.step("Load it in a session") as step:
                session = open_models.enter_context(open_session(staged))
                step.detail = "; ".join(str(signature) for signature in session.signatures.values())
            python = self._load_by_python(source, staged)
            return self._check_loaded(source, session, python)

    def _load_by_python(self, source: OpenedSource, staged: Path) -> PythonModel | None:
        """Models that load in a session alone are served all the same, if they came so."""
        with self._progress.step("Load it by Python"):
            try:
                return PythonModel(staged)
            except Exception as error:  # TensorFlow raises nearly anything here
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                if source.reference is not None:
                    raise ParityFailed(f"the SavedModel does not load by Python: {reason}") from error
        self._warn(f"loads in a session, not by Python ({reason}): compared with itself only")
        return None

    def _check_loaded(self, source: OpenedSource, session: SessionModel, python: PythonModel | None) -> _Checked:
        options = self._options
        signatures = session.signatures
        compute_dtype = source.compute_dtype or ("mixed_bfloat16" if session.uses_bfloat16() else "float32")
        in_bfloat16 = "bfloat16" in compute_dtype or session.uses_bfloat16() or options.model.compute_dtype != "keep"
        tolerance = Tolerance.choose(in_bfloat16, options.atol, options.rtol)
        # The largest batch, and always enough rows for the row-independence check to have neighbours.
        rows = max(*options.batch_sizes, 4)
        reference = source.reference or python or session
        samples = {n: find_samples(one, rows, options.check, session) for n, one in signatures.items()}
        loaded: dict[str, Runnable] = {"session": session} | ({"python": python} if python else {})
        parity, dependence = {}, {}
        for name, signature in signatures.items():
            parity[name] = self._check_parity(signature, samples[name], reference, loaded, tolerance)
            dependence[name] = self._check_rows(signature, samples[name], session, tolerance)
        return _Checked(signatures, samples, parity, tolerance, dependence, compute_dtype)

    def _check_parity(
        self,
        signature: Signature,
        samples: Tensors,
        reference: Runnable,
        loaded: Mapping[str, Runnable],
        tolerance: Tolerance,
    ) -> ParityResult:
        with self._progress.step(f"Compare {signature.name} with the source") as step:
            result = check_parity(signature, samples, self._options.batch_sizes, reference, loaded, tolerance)
            step.detail = (
                f"{result.comparisons} comparisons over {result.rows} row(s), largest difference "
                f"{result.max_abs_difference:.3g} (allowed {tolerance.atol:g} + {tolerance.rtol:g} * |expected|)"
            )
            return result

    def _check_rows(
        self, signature: Signature, samples: Tensors, session: SessionModel, tolerance: Tolerance
    ) -> str:  # fmt: skip
        """What rows depend on besides themselves; empty when on nothing."""
        if not signature.is_batchable:
            return "no batch dimension"
        with self._progress.step(f"Check that rows of {signature.name} are independent") as step:
            found = find_dependence(signature, samples, session, tolerance)
            step.detail = "no" if found else "yes"
        if found:
            self._warn(f"a row of {signature.name} depends on {found}; requests will not share batches")
        return found

    def _warm(self, staged: Path, checked: _Checked) -> int:
        options = self._options
        if options.warmup is None and (staged / WARMUP_FILE).exists():
            self._warn("the source's own warm-up requests are kept")
            return 0
        with self._progress.step("Write warm-up requests") as step:
            samples = dict(checked.samples)
            if options.warmup is not None:
                rows = max(options.batch_sizes)
                samples = {n: read_samples(options.warmup, one, rows) for n, one in checked.signatures.items()}
            name = options.out_base.resolve().name
            records = write_warmup(staged, name, checked.signatures, samples, options.batch_sizes)
            step.detail = f"{records} record(s)"
            return records

    def _describe(self, source: OpenedSource, staged: Path, checked: _Checked) -> Manifest:
        manifest = Manifest(
            exporter_version=importlib.metadata.version("tpuserve-exporter"),
            created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            source=ManifestSource(kind=source.kind, name=source.name, step=source.step, builder=source.builder),
            compute_dtype=checked.compute_dtype,
            cpu=ManifestCpu(allow_bfloat16_kernels="bfloat16" in checked.compute_dtype),
            signatures={
                name: ManifestSignature.describe(signature, self._options.batch_sizes, not checked.dependence[name])
                for name, signature in checked.signatures.items()
            },
            parity=ManifestParity(
                max_abs_difference=max(result.max_abs_difference for result in checked.parity.values()),
                atol=checked.tolerance.atol,
                rtol=checked.tolerance.rtol,
                rows=max(result.rows for result in checked.parity.values()),
            ),
            files=dict(describe_files(staged)),
        )
        manifest.write(staged)
        return manifest

    def _publish(self, staged: Path) -> int:
        with self._progress.step("Publish") as step:
            version = publish(staged, self._options.out_base, self._options.version)
            step.detail = str(self._options.out_base / str(version))
            return version
