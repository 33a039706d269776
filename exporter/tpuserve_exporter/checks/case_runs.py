"""Runs the source, and then the written version in Python and as device programs, on the inputs of the comparison.

They run one after the other, before a session opens the version, because each holds all of the weights.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tpuserve_exporter.checks.parity import list_cases
from tpuserve_exporter.checks.parity_result import ParityResult
from tpuserve_exporter.checks.program_runs import run_programs
from tpuserve_exporter.checks.raw_image_check import RawAnswer, run_raw_images
from tpuserve_exporter.checks.recorded_answers import RecordedAnswers
from tpuserve_exporter.checks.tpu_numerics import compare_numerics
from tpuserve_exporter.errors import OptionConflict, ParityFailed, reason_of
from tpuserve_exporter.options.export_options import ExportOptions, SequenceOptions
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.runnable import Sampled
from tpuserve_exporter.samples.sample_files import SampleFile, open_samples
from tpuserve_exporter.samples.samples import find_samples, take_rows
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.signatures.served_signature import WrappedReference
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.version.loaded_model import PythonModel, WrittenModel
from tpuserve_formats.manifest.device import ManifestDevice

# The row-independence check needs neighbours, even if the largest batch has only one row.
LEAST_ROWS = 4


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
        """Add the answers of the programs and the results of --tpu-numerics to `asked`."""
        if device is None or results.source is None:
            return
        options, progress, warn = self._options, self._progress, self._warn
        signatures, samples = written.signatures, results.samples
        results.programs = run_programs(version, device, signatures, samples, options, progress, warn)
        if options.tpu.numerics:
            results.numerics = compare_numerics(
                version, device, signatures, samples, results.source, options, progress, warn
            )

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
