"""Checks a written version: it loads, it answers as its source does, and its answers depend only on their rows."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.checks.answer_checks import AnswerChecks, Answers
from tpuserve_exporter.checks.case_runs import CaseResults, CaseRunner, check_sequences
from tpuserve_exporter.checks.difference import COARSE, Tolerance
from tpuserve_exporter.checks.padding_independence import check_padding
from tpuserve_exporter.checks.parity import compare_cases, require_parity, require_shapes
from tpuserve_exporter.checks.parity_result import ParityResult
from tpuserve_exporter.checks.raw_image_check import RawAnswer, check_raw_images
from tpuserve_exporter.checks.training_left import find_training
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.runnable import Runnable
from tpuserve_exporter.samples.samples import check_lengths, refusal_of
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.version.loaded_model import SessionModel, open_session
from tpuserve_exporter.version.loaded_tflite import TfliteModel
from tpuserve_exporter.version.tflite_writer import TFLITE_FILE
from tpuserve_formats.manifest.device import ManifestDevice


@dataclass(frozen=True, slots=True)
class CheckedSignature:
    """One signature that passed the checks, with the inputs of the checks."""

    signature: Signature
    samples: Tensors
    parity: ParityResult
    rows_independent: bool
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """The results for one written version. `reference` answers as the source does while the session is open."""

    signatures: Mapping[str, CheckedSignature]
    tolerance: Tolerance
    compute_dtype: str
    reference: Runnable
    lite_signatures: frozenset[str] | None = None

    @property
    def everywhere(self) -> list[str]:
        """Signatures for warm-up requests. A LiteRT model does not load with a request for one that it lacks."""
        return [name for name in self.signatures if self.lite_signatures is None or name in self.lite_signatures]


class Checks:
    """Runs the checks of one export. `warn` takes messages for the user about a version that passes."""

    def __init__(self, options: ExportOptions, progress: Progress, warn: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._warn = warn
        self._runner = CaseRunner(options, progress, warn)

    def record_answers(self, source: OpenedSource, version: Path, device: ManifestDevice | None) -> CaseResults:
        """Run the source, then `version` in Python, then its programs, before `open` loads it. See CaseRunner."""
        return self._runner.run(source, version, device)

    @contextlib.contextmanager
    def open(self, version: Path) -> Iterator[SessionModel]:
        """Load `version` into a session for the body's duration. Raises SessionLoadFailed."""
        with contextlib.ExitStack() as open_models:
            with self._progress.step("Load the version in a session") as step:
                session = open_models.enter_context(open_session(version))
                step.detail = "; ".join(str(signature) for signature in session.signatures.values())
            yield session

    def run(
        self,
        source: OpenedSource,
        results: CaseResults,
        version: Path,
        session: SessionModel,
        device: ManifestDevice | None,
    ) -> CheckedVersion:
        """Check `version`, which is open in `session`.

        Raises OptionConflict, SamplesUnfit, TrainingMode or ParityFailed.
        """
        check_sequences(session.signatures.values(), self._options.sequences, device)
        tolerance = self._choose_tolerance(source, session)
        reference = results.source or session
        loaded: dict[str, Runnable] = {"session": session} | ({"Python": results.python} if results.python else {})
        samples = self._samples(results, session)
        lite = self._load_by_litert(version)
        answers = self._check_answers(source, version, session, samples, tolerance)
        checked = {
            name: self._check(
                signature,
                samples[name],
                session,
                reference,
                loaded
                | ({"LiteRT": lite} if lite is not None and name in lite.signatures else {})
                | {way: answers for way, answers in results.programs.items() if answers.knows(signature)},
                results.raw.get(name),
                tolerance,
                answers[name],
            )
            for name, signature in session.signatures.items()
        }
        self._warn_of_rows(checked, device)
        compute_dtype = source.compute_dtype or ("mixed_bfloat16" if session.makes("bfloat16") else "float32")
        in_lite = None if lite is None else lite.signatures
        return CheckedVersion(checked, tolerance, compute_dtype, reference, in_lite)

    def _check_answers(
        self,
        source: OpenedSource,
        version: Path,
        session: SessionModel,
        samples: Mapping[str, Tensors],
        tolerance: Tolerance,
    ) -> Mapping[str, Answers]:
        """Check the answers before the comparison, because a source in training mode agrees with its copy."""
        of_tf1_graph = source.kind == "tf1-meta"
        checks = AnswerChecks(self._options, self._progress, self._warn, session, tolerance, of_tf1_graph=of_tf1_graph)
        training = find_training(version, samples)
        return {
            name: checks.check(signature, samples[name], training[name])
            for name, signature in session.signatures.items()
        }

    def _warn_of_rows(self, checked: Mapping[str, CheckedSignature], device: ManifestDevice | None) -> None:
        """Warn about batch sizes without a program. Dependent rows cannot be padded to the next larger program.

        Rows that depend on each other only in the host part can be padded between host part and program.
        """
        if device is None:
            return
        independent = {name for name, one in checked.items() if one.rows_independent}
        padded = {one.part for name, one in device.signatures.items() if name in independent and device.is_part(name)}
        for name, one in device.signatures.items():
            if checked[name].signature.is_batchable and name not in independent and one.part not in padded:
                sizes = ", ".join(map(str, self._options.batch_sizes))
                self._warn(f"{name}: its device programs take exactly {sizes} rows, because the rows cannot be padded")

    def _samples(self, results: CaseResults, session: SessionModel) -> Mapping[str, Tensors]:
        """Return the source's samples, which the session must take, or without a source, samples for the session."""
        if results.source is None:
            file = self._runner.open_check_file()
            return {name: self._runner.find_samples(one, file, session) for name, one in session.signatures.items()}
        for name, signature in session.signatures.items():
            refusal = refusal_of(signature, results.samples[name], session)
            if refusal is not None:
                raise ParityFailed(f"{name} fails in a session on inputs that the source takes: {refusal}")
        return results.samples

    def _load_by_litert(self, version: Path) -> TfliteModel | None:
        if "tflite" not in self._options.also:
            return None
        with self._progress.step(f"Load {TFLITE_FILE} in LiteRT") as step:
            model = TfliteModel(version / TFLITE_FILE)
            step.detail = ", ".join(sorted(model.signatures))
        return model

    def _choose_tolerance(self, source: OpenedSource, session: SessionModel) -> Tolerance:
        """Return the tolerance for the coarsest dtype, which the source shows if the graph hides it in StableHLO."""
        options = self._options
        stated = source.compute_dtype or ""
        coarsest = next((dtype for dtype in COARSE if dtype in stated or session.makes(dtype)), "float32")
        # Folding changes where values are rounded, as another dtype does.
        converted = options.model.compute_dtype != "keep" or (options.model.freeze and coarsest in COARSE)
        if source.quantized is not None:
            coarsest = "int8"
        return Tolerance.choose(coarsest, converted, options.atol, options.rtol)

    def _check(
        self,
        signature: Signature,
        samples: Tensors,
        session: SessionModel,
        reference: Runnable,
        loaded: Mapping[str, Runnable],
        raw: RawAnswer | None,
        tolerance: Tolerance,
        answers: Answers,
    ) -> CheckedSignature:
        independent = answers.rows_independent
        if answers.deterministic:
            self._check_padding(signature, samples, session, tolerance)
        sizes = self._options.batch_sizes
        with self._progress.step(f"Compare {signature.name} with the source") as step:
            parity = compare_cases(
                signature, samples, sizes, reference, loaded, tolerance, padded=independent, advance=step.advance
            )
            require = require_parity if answers.deterministic else require_shapes
            require(signature, parity, tolerance)
            if raw is not None and answers.deterministic:
                check_raw_images(signature, raw, session, tolerance)
            step.detail = (
                f"{len(parity.comparisons)} comparisons over {parity.rows} row(s), largest difference "
                f"{parity.max_abs_difference:.3g} (tolerance {tolerance})"
            )
        if parity.all_nan:
            self._warn(
                f"{signature.name} returns only NaN in {', '.join(parity.all_nan)}, so that equality with the source "
                "is not proven"
            )
        if answers.deterministic and (others := parity.other_classes()):
            self._warn(f"{signature.name}: the first class differs within the tolerance ({', '.join(others)} rows)")
        return CheckedSignature(signature, samples, parity, independent, answers.deterministic)

    def _check_padding(
        self, signature: Signature, samples: Tensors, session: SessionModel, tolerance: Tolerance
    ) -> None:
        sequences = self._options.sequences
        if not sequences.buckets or not signature.has_sequences:
            return
        with self._progress.step(f"Check that padding does not change {signature.name}") as step:
            check_lengths(signature, samples, sequences, "--check")
            comparisons = check_padding(signature, samples, sequences, session, tolerance)
            step.detail = f"{comparisons} comparison(s), up to a length of {sequences.buckets[-1]}"
