"""Runs the source, and then the written version in Python and as device programs, on the inputs of the comparison.

They run one after the other, before a session opens the version, because each holds all of the weights.
"""

import contextlib
import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tpuserve_exporter.checks.difference import COARSE
from tpuserve_exporter.checks.parity import ParityResult, compare_cases, list_cases
from tpuserve_exporter.checks.program_answers import ProgramModel, list_answers
from tpuserve_exporter.checks.raw_image_check import RawAnswer, run_raw_images
from tpuserve_exporter.errors import OptionConflict, ParityFailed, reason_of
from tpuserve_exporter.options.export_options import ExportOptions, SequenceOptions
from tpuserve_exporter.programs.host_part import HOST_FOLDER
from tpuserve_exporter.signatures.served_signature import WrappedReference
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.terms.progress import Progress, Step
from tpuserve_exporter.terms.sample_files import SampleFile, open_samples
from tpuserve_exporter.terms.samples import find_samples, take_rows
from tpuserve_exporter.terms.signature import Runnable, Sampled, Signature, Tensors
from tpuserve_exporter.version.loaded_model import PythonModel, SessionModel, WrittenModel, open_session
from tpuserve_formats.manifest.device import ManifestDevice

# The row-independence check needs neighbours, even if the largest batch has only one row.
LEAST_ROWS = 4
# Differences that bfloat16 products usually make.
_TOLERANCE = COARSE["bfloat16"]


class RecordedAnswers:
    """A model that repeats recorded answers. For other inputs it raises KeyError, which is an error in the exporter."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], Tensors | Exception] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def knows(self, signature: Signature) -> bool:
        """Return whether any answer for the signature is recorded."""
        return any(name == signature.name for name, _ in self._answers)

    def record(self, model: Runnable, signature: Signature, requests: Iterable[Tensors]) -> None:
        """Run `model` on the inputs and keep its answers. TensorFlow errors are kept too, and `run` raises them."""
        import tensorflow as tf

        for inputs in requests:
            key = (signature.name, _digest(inputs))
            if key not in self._answers:
                try:
                    self._answers[key] = model.run(signature, inputs)
                except tf.errors.OpError as error:
                    self._answers[key] = error

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the recorded outputs by name. Raises tf.errors.OpError if the model did."""
        answer = self._answers[signature.name, _digest(inputs)]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _digest(inputs: Tensors) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(inputs.items()):
        array = np.asarray(value)
        digest.update(f"{name}:{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return digest.digest()


@dataclass(slots=True)
class CaseResults:
    """Samples by signature, and the answers of the source and of `python` to every case.

    `raw` has the source's answers to images of known pixels, and `numerics` the results of --tpu-numerics. `programs`
    has the answers of device programs, by their names in the comparison. If a copied SavedModel does not load in
    Python, all fields are empty, and only the session answers.
    """

    samples: dict[str, Tensors] = field(default_factory=dict)
    source: RecordedAnswers | None = None
    python: RecordedAnswers | None = None
    raw: dict[str, RawAnswer] = field(default_factory=dict)
    programs: dict[str, RecordedAnswers] = field(default_factory=dict)
    numerics: dict[str, ParityResult] = field(default_factory=dict)


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
        if source.reference is None:
            python = self._load_by_python(version)
            return CaseResults() if python is None else self._run_and_release(python, version, device)
        written = WrittenModel(version, source.reference)
        results = self._run_source(written, device)
        if isinstance(source.reference, WrappedReference):
            results.raw = run_raw_images(source.reference, results.samples)
        source.release()
        results.python = self._run_python(written, results, version)
        self._run_programs(written, results, version, device)
        return results

    def _run_and_release(self, python: PythonModel, version: Path, device: ManifestDevice | None) -> CaseResults:
        written = WrittenModel(version, python)
        results = self._run_source(written, device)
        results.python = self._answers_to_cases(written, results, python)
        python.release()
        gc.collect()
        self._run_programs(written, results, version, device)
        return results

    def _run_source(self, source: WrittenModel, device: ManifestDevice | None) -> CaseResults:
        check_sequences(source.signatures.values(), self._options.sequences, device)
        file, samples, answers = self.open_check_file(), dict[str, Tensors](), RecordedAnswers()
        with self._progress.step("Run the source model") as step:
            for done, (name, signature) in enumerate(source.signatures.items()):
                step.advance(done, len(source.signatures))
                samples[name] = self.find_samples(signature, file, source)
                answers.record(source, signature, self._inputs_of_cases(signature, samples[name]))
            step.detail = f"{len(answers)} request(s)"
        return CaseResults(samples, answers)

    def _run_python(self, written: WrittenModel, results: CaseResults, version: Path) -> RecordedAnswers:
        with self._progress.step("Load the version in Python and run it") as step:
            try:
                python = PythonModel(version)
            except Exception as error:  # TensorFlow raises many types here
                raise ParityFailed(f"cannot load the SavedModel in Python: {reason_of(error)}") from error
            answers = self._answers_to_cases(written, results, python)
            step.detail = f"{len(answers)} request(s)"
        python.release()
        gc.collect()
        return answers

    def _answers_to_cases(self, written: WrittenModel, results: CaseResults, python: PythonModel) -> RecordedAnswers:
        answers = RecordedAnswers()
        for name, signature in written.signatures.items():
            cases = list_cases(signature, results.samples[name], self._options.batch_sizes, padded=True)
            answers.record(python, signature, (case.inputs for case in cases))
        return answers

    def _run_programs(
        self, written: WrittenModel, results: CaseResults, version: Path, device: ManifestDevice | None
    ) -> None:
        """Add the answers of the programs to `results`, and the results of --tpu-numerics."""
        if device is None or results.source is None:
            return
        signatures, samples = written.signatures, results.samples
        with self._progress.step("Run the device programs on the CPU") as step:
            results.programs, too_long = self._answer_by_programs(
                version, device, signatures, samples, step, in_bfloat16=False
            )
            for way, name in too_long:
                self._warn(
                    f"{name}: its {way} is not checked, because the inputs are longer. Use --check with shorter inputs"
                )
        if self._options.tpu.numerics:
            with self._progress.step("Emulate a TPU's bfloat16 products") as step:
                emulated, _ = self._answer_by_programs(version, device, signatures, samples, step, in_bfloat16=True)
            results.numerics = self._compare_numerics(written, results, emulated)

    def _answer_by_programs(
        self,
        version: Path,
        device: ManifestDevice,
        signatures: Mapping[str, Signature],
        samples: Mapping[str, Tensors],
        step: Step,
        *,
        in_bfloat16: bool,
    ) -> tuple[dict[str, RecordedAnswers], list[tuple[str, str]]]:
        """Return the programs' answers to every case of every signature, by their name in the comparison.

        There is one name for each length, and the second result has it with each signature whose inputs are longer.
        With `in_bfloat16`, operands of products are rounded to bfloat16, as on a TPU. This emulation omits other
        differences of a TPU: the order of sums, and its own functions for exp, tanh and others.

        Raises:
            ParityFailed: if a program does not run.
            SessionLoadFailed: if the host part does not load.
            SamplesUnfit: if inputs cannot be padded.
        """
        answers, too_long = dict[str, RecordedAnswers](), list[tuple[str, str]]()
        with _open_host(version, device) as host:
            ways = dict(list_answers(ProgramModel(version, device, in_bfloat16=in_bfloat16), device, host))
            for done, (way, programs) in enumerate(ways.items()):
                step.advance(done, len(ways))
                answers[way] = RecordedAnswers()
                for name, signature in signatures.items():
                    if not programs.has(signature):
                        continue
                    if programs.takes(signature, samples[name]):
                        cases = list_cases(signature, samples[name], self._options.batch_sizes, padded=True)
                        answers[way].record(programs, signature, (case.inputs for case in cases))
                    else:
                        too_long.append((way, name))
            step.detail = f"{sum(map(len, answers.values()))} request(s)"
        gc.collect()
        return answers, too_long

    def _compare_numerics(
        self, written: WrittenModel, results: CaseResults, emulated: Mapping[str, RecordedAnswers]
    ) -> dict[str, ParityResult]:
        """Compare every program's emulated answers with the source's, by signature, and warn of large differences.

        Differences do not fail the export. The user gets those beyond bfloat16's usual ones, and another first class.
        """
        assert results.source is not None, "the programs ran on the samples of the source"
        found = {}
        for name, signature in written.signatures.items():
            if ways := {way: one for way, one in emulated.items() if one.knows(signature)}:
                samples, sizes = results.samples[name], self._options.batch_sizes
                found[name] = compare_cases(signature, samples, sizes, results.source, ways, _TOLERANCE, padded=False)
                for warning in _warnings(name, found[name]):
                    self._warn(warning)
        return found

    def _load_by_python(self, version: Path) -> PythonModel | None:
        """Load the version in Python, or warn and return None. A copied SavedModel may load only in a session."""
        with self._progress.step("Load the version in Python"):
            try:
                return PythonModel(version)
            except Exception as error:  # TensorFlow raises many types here
                reason = reason_of(error)
        self._warn(
            f"the version loads in a session but not in Python ({reason}). The export compares it only with itself"
        )
        return None

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


def check_sequences(signatures: Iterable[Signature], sequences: SequenceOptions, device: ManifestDevice | None) -> None:
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
