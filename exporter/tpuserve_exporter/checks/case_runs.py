"""Runs the source, and then the written version in Python and as device programs, on the inputs of the comparison.

They run one after the other, before a session opens the version, because each holds all of the weights.
"""

import contextlib
import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.checks.difference import COARSE, Tolerance
from tpuserve_exporter.checks.padding import LengthTrial, list_trials
from tpuserve_exporter.checks.parity import ParityResult, compare_cases, list_cases
from tpuserve_exporter.checks.program_answers import ProgramModel, list_answers
from tpuserve_exporter.checks.raw_image_check import RawAnswer, run_raw_images
from tpuserve_exporter.errors import OptionConflict, ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import ExportOptions, SequenceOptions
from tpuserve_exporter.programs.host_part import HOST_FOLDER
from tpuserve_exporter.signatures.served_signature import WrappedReference
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.loaded import PythonModel
from tpuserve_exporter.terms.domain import Sampled
from tpuserve_exporter.terms.progress import Progress, Step
from tpuserve_exporter.terms.sample_files import SampleFile
from tpuserve_exporter.terms.sample_rows import open_samples
from tpuserve_exporter.terms.samples import find_samples, take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel, WrittenModel, open_session
from tpuserve_formats.manifest.device import ManifestDevice

# The row-independence check needs neighbours, even if the largest batch has only one row.
LEAST_ROWS = 4
# Differences that bfloat16 products usually make.
_TOLERANCE = COARSE["bfloat16"]


class RecordedAnswers:
    """A model that repeats recorded answers. For other inputs it raises KeyError, which is an error in the exporter.

    The answers to all cases take several times the memory of one, so they are in a file of `folder`, which the caller
    removes. Only strings stay in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "answers"
        self._answers: dict[tuple[str, bytes], Mapping[str, _Stored | Array] | SamplesUnfit] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def record(self, model: Runnable, signature: Signature, requests: Iterable[Tensors]) -> None:
        """Run `model` on the inputs and keep its answers. Raises SamplesUnfit if it refuses the inputs."""
        for inputs in requests:
            key = (signature.name, _digest(inputs))
            if key not in self._answers:
                self._answers[key] = self._store(model.run(signature, inputs))

    def record_lengths(self, model: Runnable, signature: Signature, trials: Iterable[LengthTrial]) -> None:
        """Run `model` on inputs of other lengths. It may refuse some, and `run` raises its SamplesUnfit for these."""
        for trial in trials:
            try:
                self.record(model, signature, [trial.inputs])
            except SamplesUnfit as error:
                self._answers[signature.name, _digest(trial.inputs)] = error

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the recorded outputs by name. Raises SamplesUnfit for a length that the model refused."""
        stored = self._answers[signature.name, _digest(inputs)]
        if isinstance(stored, SamplesUnfit):
            raise stored
        return {name: one.read(self._path) if isinstance(one, _Stored) else one for name, one in stored.items()}

    def _store(self, outputs: Tensors) -> "dict[str, _Stored | Array]":
        return {name: self._store_one(np.asarray(value)) for name, value in outputs.items()}

    def _store_one(self, value: Array) -> "_Stored | Array":
        if value.dtype == object:
            return value
        with self._path.open("ab") as file:
            start = file.tell()
            file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return _Stored(start, value.dtype, value.shape)


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array in a file of arrays."""

    start: int
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]

    def read(self, path: Path) -> Array:
        # numpy does not read bfloat16 from files by itself.
        count = math.prod(self.shape) * self.dtype.itemsize
        return np.fromfile(path, np.uint8, count, offset=self.start).view(self.dtype).reshape(self.shape)


def _digest(inputs: Tensors) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(inputs.items()):
        array = np.asarray(value)
        digest.update(f"{name}:{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return digest.digest()


@dataclass(slots=True)
class CaseResults:
    """The answers of the source, samples by signature, and their comparison with the version's, loaded in other ways.

    `tolerance` and `compute_dtype` are those of the version. `compared` has a result for each signature and way:
    Python, and the device programs of each length. `raw` has the source's answers to images of known pixels, and
    `numerics` the results of --tpu-numerics.
    """

    source: RecordedAnswers
    tolerance: Tolerance
    compute_dtype: str
    samples: dict[str, Tensors] = field(default_factory=dict)
    compared: dict[str, list[ParityResult]] = field(default_factory=dict)
    raw: dict[str, RawAnswer] = field(default_factory=dict)
    numerics: dict[str, ParityResult] = field(default_factory=dict)


class _Cases:
    """The cases of one export, and their `results`."""

    def __init__(self, options: ExportOptions, source: OpenedSource, version: Path) -> None:
        self._options = options
        self.written = WrittenModel(version, source.reference)
        tolerance = _choose_tolerance(options, source, self.written)
        compute_dtype = source.compute_dtype or ("mixed_bfloat16" if self.written.makes("bfloat16") else "float32")
        self.results = CaseResults(RecordedAnswers(version.parent), tolerance, compute_dtype)

    def compare(self, signature: Signature, ways: Mapping[str, Runnable]) -> ParityResult:
        """Compare the answers of `ways` with the source's, also for a padded batch."""
        found = self._compare(signature, ways, self.results.tolerance, padded=True)
        self.results.compared.setdefault(signature.name, []).append(found)
        return found

    def compare_numerics(self, signature: Signature, ways: Mapping[str, Runnable]) -> ParityResult:
        """Compare the emulated answers of `ways` with the source's."""
        found = self.results.numerics[signature.name] = self._compare(signature, ways, _TOLERANCE, padded=False)
        return found

    def _compare(
        self, signature: Signature, ways: Mapping[str, Runnable], tolerance: Tolerance, *, padded: bool
    ) -> ParityResult:
        samples, sizes = self.results.samples[signature.name], self._options.batch_sizes
        return compare_cases(signature, samples, sizes, self.results.source, ways, tolerance, padded=padded)


class CaseRunner:
    """Runs the models of one export. `warn` takes messages for the user about a version that passes."""

    def __init__(self, options: ExportOptions, progress: Progress, warn: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._warn = warn

    def run(self, source: OpenedSource, version: Path, device: ManifestDevice | None) -> CaseResults:
        """Run all cases of the comparison, and free the memory of the source's weights.

        Raises OptionConflict, SamplesUnfit, SessionLoadFailed, or ParityFailed if `version` does not load in Python.
        """
        cases = _Cases(self._options, source, version)
        self._run_source(cases, device)
        if isinstance(source.reference, WrappedReference):
            cases.results.raw = run_raw_images(source.reference, cases.results.samples)
        source.release()
        self._run_python(cases, self._load_by_python(version, copied=isinstance(source.model, Path)))
        if device is not None:
            self._run_programs(cases, version, device)
        return cases.results

    def _run_source(self, cases: _Cases, device: ManifestDevice | None) -> None:
        written, results = cases.written, cases.results
        _check_sequences(written.signatures.values(), self._options.sequences, device)
        file = self.open_check_file()
        with self._progress.step("Run the source model") as step:
            for done, (name, signature) in enumerate(written.signatures.items()):
                step.advance(done, len(written.signatures))
                results.samples[name] = self.find_samples(signature, file, written)
                samples = results.samples[name]
                results.source.record(written, signature, self._inputs_of_cases(signature, samples))
                trials = list_trials(signature, samples, self._options.sequences)
                results.source.record_lengths(written, signature, trials)
            step.detail = f"{len(results.source)} request(s)"

    def _load_by_python(self, version: Path, *, copied: bool) -> PythonModel | None:
        """Load the version in Python. A `copied` SavedModel may load only in a session: warn and return None."""
        with self._progress.step("Load the version in Python"):
            try:
                return PythonModel(version)
            except Exception as error:  # TensorFlow raises many types here
                reason = reason_of(error)
                if not copied:
                    raise ParityFailed(f"cannot load the SavedModel in Python: {reason}") from error
        self._warn(
            f"the version loads in a session but not in Python ({reason}). The export compares it with the source in a "
            "session"
        )
        return None

    def _run_python(self, cases: _Cases, python: PythonModel | None) -> None:
        if python is None:
            return
        with self._progress.step("Run the version in Python") as step:
            found = [cases.compare(one, {"Python": python}) for one in cases.written.signatures.values()]
            step.detail = f"{sum(len(one.comparisons) for one in found)} request(s)"
        python.release()
        gc.collect()

    def _run_programs(self, cases: _Cases, version: Path, device: ManifestDevice) -> None:
        """Compare the answers of the programs, also for --tpu-numerics."""
        with self._progress.step("Run the device programs on the CPU") as step:
            for way, name in self._compare_programs(cases, version, device, step):
                self._warn(
                    f"{name}: its {way} is not checked, because the inputs are longer. Use --check with shorter inputs"
                )
        if self._options.tpu.numerics:
            with self._progress.step("Emulate a TPU's bfloat16 products") as step:
                self._compare_programs(cases, version, device, step, in_bfloat16=True)
            for name, result in cases.results.numerics.items():
                for warning in _warnings(name, result):
                    self._warn(warning)

    def _compare_programs(
        self, cases: _Cases, version: Path, device: ManifestDevice, step: Step, *, in_bfloat16: bool = False
    ) -> list[tuple[str, str]]:
        """Compare the programs' answers to every case of every signature, in the ways of their lengths.

        Return each way with each signature whose inputs are longer. With `in_bfloat16`, operands of products are
        rounded to bfloat16, as on a TPU. This emulation omits other differences of a TPU: the order of sums, and its
        own functions for exp, tanh and others. Its differences do not fail the export.

        Raises:
            ParityFailed: if a program does not run.
            SessionLoadFailed: if the host part does not load.
            SamplesUnfit: if inputs cannot be padded.
        """
        too_long, requests = list[tuple[str, str]](), 0
        with _open_host(version, device) as host:
            model = ProgramModel(version, device, in_bfloat16=in_bfloat16)
            ways = dict(list_answers(model, device, host))
            for done, (name, signature) in enumerate(cases.written.signatures.items()):
                step.advance(done, len(cases.written.signatures))
                has = {way: one for way, one in ways.items() if one.has(signature)}
                takes = {way: one for way, one in has.items() if one.takes(signature, cases.results.samples[name])}
                too_long += [(way, name) for way in has.keys() - takes.keys()]
                if takes:
                    compare = cases.compare_numerics if in_bfloat16 else cases.compare
                    requests += len(compare(signature, takes).comparisons)
            step.detail = f"{requests} request(s)"
        gc.collect()
        return too_long

    def open_check_file(self) -> SampleFile | None:
        """Open the user's inputs, or return None without --check. Raises SamplesUnfit."""
        options = self._options
        return None if options.check is None else open_samples(options.check, options.sequences.pad_values)

    def find_samples(self, signature: Signature, file: SampleFile | None, model: Sampled) -> Tensors:
        """Return inputs to check `signature` with, that `model` takes. Raises SamplesUnfit."""
        rows = max(*self._options.batch_sizes, LEAST_ROWS)
        buckets = self._options.sequences.buckets
        # Samples must fit every program, including the one for the shortest sequences.
        longest = buckets[:1] if self._options.device_programs else buckets[-1:]
        return find_samples(signature, rows, file, model, *longest)

    def _inputs_of_cases(self, signature: Signature, samples: Tensors) -> Iterator[Tensors]:
        """Yield the inputs of each case without padding, and of a batch also the first row alone."""
        for case in list_cases(signature, samples, self._options.batch_sizes, padded=True):
            yield case.real
        if signature.is_batchable:
            yield take_rows(samples, slice(0, 1))


def _choose_tolerance(options: ExportOptions, source: OpenedSource, written: WrittenModel) -> Tolerance:
    """Return the tolerance for the coarsest dtype, which the source shows if the graph hides it in StableHLO."""
    stated = source.compute_dtype or ""
    coarsest = next((dtype for dtype in COARSE if dtype in stated or written.makes(dtype)), "float32")
    # Folding changes where values are rounded, as another dtype does.
    converted = options.model.compute_dtype != "keep" or (options.model.freeze and coarsest in COARSE)
    if source.quantized is not None:
        coarsest = "int8"
    return Tolerance.choose(coarsest, converted, options.atol, options.rtol)


def _check_sequences(
    signatures: Iterable[Signature], sequences: SequenceOptions, device: ManifestDevice | None
) -> None:
    """Raise OptionConflict if --sequence-buckets or --pad-value applies to no signature and no host part's output."""
    inputs = [item for signature in signatures if signature.has_sequences for item in signature.inputs.items()]
    names = {name for name, spec in inputs if spec.free_axes}
    parts = () if device is None else device.parts.values()
    names |= {name for part in parts for name, tensor in part.inputs.items() if tensor.free_axes}
    if sequences.buckets and not names:
        raise OptionConflict(
            "--sequence-buckets applies to no signature: no input has a free dimension other than its rows"
        )
    if unknown := sequences.pad_values.keys() - names:
        raise OptionConflict(
            f"--pad-value {min(unknown)} names no input with a free dimension. These inputs have one: "
            f"{', '.join(sorted(names))}"
        )


@contextlib.contextmanager
def _open_host(version: Path, device: ManifestDevice) -> Iterator[SessionModel | None]:
    if all(entry.host is None for entry in device.signatures.values()):
        yield None
        return
    with open_session(version / HOST_FOLDER) as host:
        yield host


def _warnings(name: str, result: ParityResult) -> list[str]:
    emulated = "with bfloat16 products, as on a TPU (emulated)"
    beyond = [f"{name}, {emulated}: {one.difference.beyond}" for one in result.failed[:1]]
    others = result.other_classes()
    return beyond + ([f"{name}, {emulated}: the first class differs ({', '.join(others)} rows)"] if others else [])
