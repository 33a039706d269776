"""One export from beginning to end: open, write, check, warm, describe, publish. A failed one leaves nothing behind."""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.python_functions import check_no_python
from tpuserve_exporter.checks.version_checks import CheckedVersion, Checks
from tpuserve_exporter.destinations.destination import open_destination
from tpuserve_exporter.destinations.disk_errors import disk_errors, temporary_disk_errors
from tpuserve_exporter.errors import CannotLower, OptionConflict
from tpuserve_exporter.examples.asking import ExampleAsking, ShownSample
from tpuserve_exporter.freezing.freeze import freeze
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.inspection.variables_files import list_served
from tpuserve_exporter.models.weights_check import describe, find_not_finite, named_values, named_variables, not_finite
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.preflight.preflight import Preflight, PreflightReport, check_shard_rules
from tpuserve_exporter.preflight.version_programs import VersionPrograms
from tpuserve_exporter.programs.device_programs import ModelToLower, describe_programs, list_wide, write_programs
from tpuserve_exporter.programs.lowering import check_lowering
from tpuserve_exporter.programs.to_lower import lower_part, lower_saved_model
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.restore_report import RestoreReport
from tpuserve_exporter.samples.sample_files import open_samples
from tpuserve_exporter.samples.samples import check_lengths, read_samples
from tpuserve_exporter.serve_check.serve_check import Question, ServeCheck, check_serving, make_questions
from tpuserve_exporter.serve_check.server_process import find_server
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.in_graph_batching import batch_calls
from tpuserve_exporter.signatures.kinds import serve_signatures
from tpuserve_exporter.signatures.labels import read_labels, write_labels
from tpuserve_exporter.signatures.served_signature import ServedSignature, WrappedReference
from tpuserve_exporter.sources.detect import detect
from tpuserve_exporter.sources.kinds import open_as_said, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.directory import copy_saved_model, saved_values
from tpuserve_exporter.sources.unreadable import source_errors
from tpuserve_exporter.stages.manifest import describe_version
from tpuserve_exporter.units import megabytes
from tpuserve_exporter.version.fingerprint import holds
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_exporter.version.manifest import (
    Manifest,
    ManifestFreezing,
)
from tpuserve_exporter.version.manifest_device import DeviceNumerics, ManifestDevice
from tpuserve_exporter.version.saved_model_writer import write_saved_model
from tpuserve_exporter.version.tflite_writer import TFLITE_FILE, check_litert, convert_saved_model, write_tflite
from tpuserve_exporter.version.warmup import WARMUP_FILE, keep_warmup, write_warmup


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export of the model `name`. `version` and `path` are None after a dry run.

    If not `published`, they are those of an existing version with exactly this content. `variables` lists the variables
    in its files. `preprocessing` has a sentence for each preparation of inputs that the exporter chose itself.
    `examples` counts the user's examples: the version answers all of them as expected.
    """

    name: str
    version: int | None
    path: OutBase | None
    manifest: Manifest
    signatures: Mapping[str, Signature]
    restore: RestoreReport | None
    warmup_records: int
    warnings: tuple[str, ...]
    published: bool = True
    serve_check: ServeCheck | None = None
    variables: tuple[StoredArray, ...] = ()
    preflight: PreflightReport | None = None
    samples: tuple[ShownSample, ...] = ()
    preprocessing: tuple[str, ...] = ()
    examples: int = 0


class Export:
    """Runs one export; TensorFlow must be up (tensorflow_start). Blocks; use once.

    A `live` model takes the place of the source that the options name.
    """

    def __init__(self, options: ExportOptions, progress: Progress, live: object | None = None) -> None:
        """Raises MissingExtra if OUT_BASE needs a library that is not installed, and OptionConflict for --labels."""
        self._options = options
        self._live = live
        self._progress = progress
        self._destination = open_destination(options.out_base)
        self._labels = read_labels(options.labels)
        self._warnings: list[str] = []
        self._preprocessing: tuple[str, ...] = ()
        self._frozen: ManifestFreezing | None = None
        self._device: ManifestDevice | None = None
        self._preflight: PreflightReport | None = None
        self._checks = Checks(options, progress, self._warn)

    def run(self) -> Exported:
        """Publish a version, unless dry-running. Raises ExportError with nothing published and nothing left behind."""
        options = self._options
        self._destination.check(options.version)
        if "tflite" in options.also:
            check_litert()
        if options.device_programs:
            check_lowering()
        preflight = self._prepare_preflight()
        if options.serve_check:
            find_server()
        source = self._freeze(self._open())
        with self._staging() as staged, disk_errors(staged, self._place, functools.partial(estimate_size, source)):
            source = self._write(source, staged)
            if self._device is not None:
                self._device = self._check_device(staged, self._device, preflight)
            check_no_python(staged)
            asked = self._checks.ask(source, staged, self._device)
            if self._device is not None and asked.numerics:
                found = DeviceNumerics(signatures={name: one.to_json() for name, one in asked.numerics.items()})
                self._device = self._device.model_copy(update={"numerics": found})
            with self._checks.open(staged) as session:
                checked = self._checks.run(source, asked, staged, session, self._device)
                samples = self._ask_examples(checked, session)
                records = self._warm(staged, checked, session)
                questions = make_questions(checked, options.batch_sizes) if options.serve_check else []
            variables = list_served(staged)
            manifest = self._describe(source, staged, checked)
            served = self._serve(staged, questions, checked.tolerance) if options.serve_check else None
            there = None if options.dry_run or options.again else self._find_same(manifest)
            version = there if there or options.dry_run else self._publish(staged)
        path = None if version is None else self._destination.locate(version)
        signatures = {name: one.signature for name, one in checked.signatures.items()}
        name, warnings = self._destination.model_name, tuple(self._warnings)
        return Exported(
            name,
            version,
            path,
            manifest,
            signatures,
            source.restore,
            records,
            warnings,
            published=there is None,
            serve_check=served,
            variables=variables,
            preflight=self._preflight,
            samples=tuple(samples),
            preprocessing=self._preprocessing,
            examples=len(options.examples),
        )

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        self._progress.warn(message)

    def _open(self) -> OpenedSource:
        options = self._options
        with self._progress.step("Read the source") as step, temporary_disk_errors(), source_errors(options.source):
            source = self._open_kind()
            if source.quantized is not None and "tflite" in options.also:
                raise OptionConflict("TensorFlow Lite takes no model that Keras has quantised: --int8 or --also tflite")
            at_step = "" if source.step is None else f" at step {source.step}"
            restored = "" if source.restore is None else f"; {source.restore.summary()}"
            step.detail = f"{source.kind} {source.name}{at_step}{restored}"
        for note in (*source.notes, *(source.restore.notes if source.restore else ())):
            self._warn(note)
        self._check_weights(source)
        return source

    def _freeze(self, source: OpenedSource) -> OpenedSource:
        """The source with the model that is written instead of its own, if that was asked for."""
        if not self._options.model.freeze or isinstance(source.model, Path):
            return source
        with self._progress.step("Fold what follows from the weights") as step:
            frozen = freeze(source.model)
            self._frozen = ManifestFreezing(
                folded=frozen.folded, computed=frozen.computed, dropped=dict(frozen.dropped)
            )
            step.detail = str(self._frozen)
        return replace(source, model=frozen.function)

    def _open_kind(self) -> OpenedSource:
        options = self._options
        if self._live is not None:
            return replace(open_live(self._live, options.model), live=True)
        model = replace(options.model, as_function=bool(options.signatures or options.batching))
        if options.kind is not None:
            return open_as_said(options.kind, options.source, model)
        return open_source(detect(options.source, model.builder is not None), options.source, model)

    def _check_weights(self, source: OpenedSource) -> None:
        """Raises WeightsNotFinite, unless that is allowed."""
        model = source.model
        values = saved_values(model) if isinstance(model, Path) else named_values(model.trackables)
        scalars = {} if source.jax is None else source.jax.scalars
        with self._progress.step("Look for NaN in the weights"):
            found = find_not_finite(itertools.chain(values, ((name, np.asarray(one)) for name, one in scalars.items())))
        if found and not self._options.model.allow_nan:
            raise not_finite(found)
        if found:
            self._warn(describe(found))

    @property
    def _place(self) -> str:
        """What users call the directory that a version is written in."""
        base = self._options.out_base
        return str(base) if isinstance(base, Path) and not self._options.dry_run else "the temporary directory (TMPDIR)"

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """Beside the versions, to be renamed into place; a dry run does not touch the base at all."""
        if not self._options.dry_run:
            with self._destination.staging() as staged:
                yield staged
            return
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere, "version")

    def _write(self, source: OpenedSource, staged: Path) -> OpenedSource:
        """The source with a reference that answers to every signature that was written."""
        with self._progress.step("Write the SavedModel") as step:
            if isinstance(source.model, Path):
                copy_saved_model(source.model, staged)
                convert = functools.partial(convert_saved_model, staged)
                to_lower: contextlib.AbstractContextManager[ModelToLower] = lower_saved_model(staged)
            else:
                device = DevicePart(source.model)
                signatures = self._write_signatures(device, staged)
                self._preprocessing = tuple(dict.fromkeys(one.note for one in signatures.values() if one.note))
                convert = functools.partial(write_tflite, staged, device, signatures.values())
                to_lower = contextlib.nullcontext(lower_part(device, source.jax, signatures))
                if source.reference is not None:
                    source = replace(source, reference=WrappedReference(signatures, device, source.reference))
            write_labels(staged, self._labels)
            size_bytes = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
            step.detail = "; ".join([megabytes(size_bytes), *self._preprocessing])
        if "tflite" in self._options.also:
            with self._progress.step(f"Write {TFLITE_FILE}") as step:
                step.detail = megabytes(convert())
        if self._options.device_programs:
            with to_lower as model:
                self._device = self._write_programs(staged, model, source.compute_dtype)
        return source

    def _write_programs(self, staged: Path, model: ModelToLower, compute_dtype: str | None) -> ManifestDevice:
        options = self._options
        with self._progress.step("Lower it for a TPU") as step:
            device = write_programs(staged, model, options.batch_sizes, options.sequences, compute_dtype, step.advance)
            step.detail = describe_programs(staged, device)
        for warning in list_wide(staged, device):
            self._warn(warning)
        for reason in model.left_out:
            self._warn(f"{reason}: it runs on the CPU, device programs or not")
        return device

    def _prepare_preflight(self) -> Preflight | None:
        """Raises MissingExtra, and OptionConflict for a mesh that a topology is too small for."""
        tpu = self._options.tpu
        return Preflight(tpu.topologies, tpu.mesh, tpu.rules, self._progress) if tpu.topologies else None

    def _check_device(self, staged: Path, device: ManifestDevice, preflight: Preflight | None) -> ManifestDevice:
        """With the rules, and what a preflight found. Raises OptionConflict, and CannotLower with --tpu-strict."""
        rules = self._options.tpu.rules
        device = device.model_copy(update={"shard": tuple(rule.to_json() for rule in rules)})
        programs = VersionPrograms.describe(staged, device.model_dump())
        if preflight is None:
            check_shard_rules(programs, rules)
            return device
        report = self._preflight = preflight.run(programs)
        if not report.passed and self._options.tpu.strict:
            raise CannotLower(
                report.explain(),
                preflight=report.to_json(),
                preflight_together=report.together_to_json(),
                preflight_advice=list(report.advice),
            )
        for warning in report.warnings():
            self._warn(warning)
        return device.model_copy(
            update={"preflight": tuple(report.to_json()), "preflight_together": tuple(report.together_to_json())}
        )

    def _write_signatures(self, device: DevicePart, staged: Path) -> Mapping[str, ServedSignature]:
        options = self._options
        requests = options.signatures or (SignatureRequest(options.model.signature_name),)
        signatures = serve_signatures(requests, device, options.sequences.pad_values, self._labels)
        for warning in dict.fromkeys(one.warning for one in signatures.values() if one.warning):
            self._warn(warning)
        call = batch_calls(device, options.batching, options.batch_sizes) if options.batching else device.call
        write_saved_model(staged, device, call, signatures.values())
        return signatures

    def _ask_examples(self, checked: CheckedVersion, session: SessionModel) -> list[ShownSample]:
        options = self._options
        title = "Ask the examples" if options.examples else "Answer sample inputs"
        with self._progress.step(title) as step:
            rows_from = "made up" if options.check is None else options.check.name
            asking = ExampleAsking(session, checked, options.signatures, self._labels, rows_from)
            samples = asking.ask(options.examples)
            if options.examples:
                step.detail = f"{len(options.examples)} answered as expected"
        counts = {one.prediction.count for one in samples if one.prediction.count}
        if self._labels and counts and len(self._labels) not in counts:
            found = " or ".join(map(str, sorted(counts)))
            self._warn(f"--labels has {len(self._labels)} classes, the scores have {found}: the labels do not fit")
        return samples

    def _warm(self, staged: Path, checked: CheckedVersion, session: SessionModel) -> int:
        options = self._options
        if options.warmup is None and (staged / WARMUP_FILE).exists():
            with self._progress.step("Run the source's own warm-up requests"):
                return keep_warmup(staged, session, checked.everywhere, options.sequences, self._warn)
        with self._progress.step("Write warm-up requests") as step:
            name = self._destination.model_name
            records = write_warmup(staged, name, self._warmup_inputs(checked, session), options.batch_sizes, session)
            step.detail = f"{records} record(s)"
            return records

    def _warmup_inputs(self, checked: CheckedVersion, session: SessionModel) -> Iterator[tuple[Signature, Tensors]]:
        options, rows = self._options, max(self._options.batch_sizes)
        given = None if options.warmup is None else open_samples(options.warmup, options.sequences.pad_values)
        for one in (checked.signatures[name] for name in checked.everywhere):
            samples = one.samples if given is None else read_samples(given, one.signature, rows, session)
            check_lengths(one.signature, samples, self._options.sequences, "--warmup")
            yield one.signature, samples

    def _describe(self, source: OpenedSource, staged: Path, checked: CheckedVersion) -> Manifest:
        with self._progress.step("Hash every file") as step:
            manifest = describe_version(
                source, staged, checked, self._options, self._frozen, self._device, step.advance
            )
            manifest.write(staged)
            step.detail = f"{len(manifest.files)} file(s)"
            return manifest

    def _serve(self, staged: Path, questions: Sequence[Question], tolerance: Tolerance) -> ServeCheck:
        with self._progress.step("Serve it by a real server") as step:
            served = check_serving(staged, self._destination.model_name, questions, tolerance)
            step.detail = str(served)
            return served

    def _find_same(self, manifest: Manifest) -> int | None:
        """The newest version, if it is this one. What was asked for by number is published all the same."""
        newest = None if isinstance(self._options.version, int) else self._destination.newest()
        return newest.number if newest is not None and holds(newest, manifest) else None

    def _publish(self, staged: Path) -> int:
        with self._progress.step("Publish") as step:
            version = self._destination.publish(staged, self._options.version)
            step.detail = str(self._destination.locate(version))
            return version


def estimate_size(source: OpenedSource) -> int:
    """About how many bytes a version of it takes: its files, or its variables."""
    if isinstance(source.model, Path):
        return sum(path.stat().st_size for path in source.model.rglob("*") if path.is_file())
    variables = (variable for _, variable in named_variables(source.model.trackables))
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
