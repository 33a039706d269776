"""Checks a written version: it loads, it answers as its source does, and its answers depend only on their rows."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tpuserve_exporter.checks.case_runs import LEAST_ROWS, CaseResults, CaseRunner
from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.padding import check_padding
from tpuserve_exporter.checks.parity import ParityResult, compare_cases, join, require_parity, require_shapes
from tpuserve_exporter.checks.raw_image_check import check_raw_images
from tpuserve_exporter.checks.touched_rows import TouchedTable, count_touched
from tpuserve_exporter.checks.variation import (
    Change,
    Finding,
    count_fixed_rows,
    find_change,
    find_dependence,
    find_dependence_in_fixed,
)
from tpuserve_exporter.checks.version_graph import (
    describe_change,
    describe_harmless,
    describe_statistics,
    find_training,
)
from tpuserve_exporter.errors import OptionConflict, ParityFailed, TrainingMode
from tpuserve_exporter.graphs.dependence import Dependence
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.terms.progress import Progress
from tpuserve_exporter.terms.samples import add_neighbours, check_lengths, distinct_rows, refusal_of
from tpuserve_exporter.terms.signature import Runnable, Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel, open_session
from tpuserve_exporter.version.tflite import TFLITE_FILE, TfliteModel
from tpuserve_formats.manifest.device import ManifestDevice


class Answers(NamedTuple):
    """The results for one signature."""

    deterministic: bool
    rows_independent: bool


class AnswerChecks:
    """The answer checks of one version. `warn` takes messages for the user about a signature that passes."""

    def __init__(
        self,
        options: ExportOptions,
        progress: Progress,
        warn: Callable[[str], None],
        session: SessionModel,
        tolerance: Tolerance,
        *,
        of_tf1_graph: bool,
    ) -> None:
        self._options = options
        self._progress = progress
        self._warn = warn
        self._session = session
        self._tolerance = tolerance
        self._of_tf1_graph = of_tf1_graph

    def check(self, signature: Signature, samples: Tensors, training: Dependence) -> Answers:
        """Check one signature.

        Raises TrainingMode for changing answers and for batch statistics, OptionConflict for --batching.
        """
        has_rows = signature.is_batchable or count_fixed_rows(signature, samples) > 1
        title = "Check that rows of {} are independent" if has_rows else "Repeat a request to {}"
        with self._progress.step(title.format(signature.name)) as step:
            change, difference = find_change(signature, samples, self._session, self._tolerance)
            found = self._find_dependence(signature, samples) if change is Change.NEVER else Finding(checked=False)
            step.detail = _describe(change, found) if has_rows else str(change) or "the same answer"
        if change is not Change.NEVER:
            self._refuse_change(describe_change(signature.name, change, difference, training))
            return Answers(deterministic=False, rows_independent=False)
        for warning in describe_harmless(signature.name, training):
            self._warn(warning)
        if found.dependence or signature.is_batchable:
            self._refuse_statistics(signature, found, training)
        if signature.is_batchable:
            self._refuse_batching(signature, found)
            self._warn_of_rows(signature, found)
        elif found.dependence and not training.sees_all:
            self._warn(f"a row of {signature.name} depends on {found.dependence}")
        return Answers(deterministic=True, rows_independent=signature.is_batchable and found.independent)

    def _find_dependence(self, signature: Signature, samples: Tensors) -> Finding:
        """Look for dependence between rows, also in a fixed batch. Skip the check if inputs or outputs have no rows."""
        if signature.is_batchable:
            if len(distinct_rows(samples)) < 2:
                samples = add_neighbours(signature, samples, LEAST_ROWS, self._session)
            return find_dependence(signature, samples, self._session, self._tolerance)
        if (rows := count_fixed_rows(signature, samples)) > 1:
            return find_dependence_in_fixed(signature, samples, rows, self._session, self._tolerance)
        return Finding(checked=False)

    def _refuse_change(self, message: str) -> None:
        if not self._options.model.allow_nondeterminism:
            raise TrainingMode(message)
        self._warn(f"{message}. The export compares only shapes with the source, and requests do not share batches")

    def _warn_of_rows(self, signature: Signature, found: Finding) -> None:
        if found.dependence:
            self._warn(f"a row of {signature.name} depends on {found.dependence}. Requests do not share batches")
        elif not found.checked:
            self._warn(
                f"all rows of {signature.name} get the same answer, so that their independence is not checked. "
                "Requests do not share batches. Use --check with rows that differ"
            )

    def _refuse_statistics(self, signature: Signature, found: Finding, training: Dependence) -> None:
        if not training.statistics or found.independent:
            return
        message = describe_statistics(signature.name, training, of_tf1_graph=self._of_tf1_graph)
        if not self._options.model.allow_batch_statistics:
            raise TrainingMode(message)
        self._warn(message)

    def _refuse_batching(self, signature: Signature, found: Finding) -> None:
        if self._options.batching is None or found.independent:
            return
        why = (
            f"depends on {found.dependence}"
            if found.dependence
            else ("may depend on others, because all rows get the same answer")
        )
        raise OptionConflict(
            f"--batching in-graph joins rows of several calls, and a row of {signature.name} {why}. Omit --batching"
            + ("" if found.dependence else ", or use --check with rows that differ")
        )


def _describe(change: Change, found: Finding) -> str:
    if change is not Change.NEVER:
        return "no, answers change"
    return "no" if found.dependence else "yes" if found.checked else "not checked"


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
    """The results for one written version. `reference` answers as the source does while the session is open.

    `tables` has the rows of tables that the samples touch.
    """

    signatures: Mapping[str, CheckedSignature]
    tolerance: Tolerance
    compute_dtype: str
    reference: Runnable
    lite_signatures: frozenset[str] | None = None
    tables: tuple[TouchedTable, ...] = ()

    @property
    def everywhere(self) -> list[str]:
        """Signatures for warm-up requests. A LiteRT model does not load with a request for one that it lacks."""
        return [name for name in self.signatures if self.lite_signatures is None or name in self.lite_signatures]


def _check_samples(samples: Mapping[str, Tensors], session: SessionModel) -> None:
    """Raise ParityFailed if the session does not take the samples, which the source takes."""
    for name, signature in session.signatures.items():
        refusal = refusal_of(signature, samples[name], session)
        if refusal is not None:
            raise ParityFailed(f"{name} fails in a session on inputs that the source takes: {refusal}")


class Checks:
    """Runs the checks of one export. `cases` runs before `open` loads the version.

    `warn` takes messages for the user about a version that passes.
    """

    def __init__(self, options: ExportOptions, progress: Progress, warn: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._warn = warn
        self.cases = CaseRunner(options, progress, warn)

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
        _check_samples(results.samples, session)
        lite = self._load_by_litert(version)
        answers = self._check_answers(source, version, session, results)
        checked = dict[str, CheckedSignature]()
        for name, signature in session.signatures.items():
            in_lite: dict[str, Runnable] = {"LiteRT": lite} if lite is not None and name in lite.signatures else {}
            checked[name] = self._check(signature, {"session": session, **in_lite}, results, answers[name])
        self._warn_of_rows(checked, device)
        tables = count_touched(session, results.samples)
        lite_signatures = None if lite is None else lite.signatures
        return CheckedVersion(
            checked, results.tolerance, results.compute_dtype, results.source, lite_signatures, tables
        )

    def _check_answers(
        self, source: OpenedSource, version: Path, session: SessionModel, results: CaseResults
    ) -> Mapping[str, Answers]:
        """Check the answers before the comparison, because a source in training mode agrees with its copy."""
        samples, of_tf1_graph = results.samples, source.kind == "tf1-meta"
        checks = AnswerChecks(
            self._options, self._progress, self._warn, session, results.tolerance, of_tf1_graph=of_tf1_graph
        )
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

    def _load_by_litert(self, version: Path) -> TfliteModel | None:
        if "tflite" not in self._options.also:
            return None
        with self._progress.step(f"Load {TFLITE_FILE} in LiteRT") as step:
            model = TfliteModel(version / TFLITE_FILE)
            step.detail = ", ".join(sorted(model.signatures))
        return model

    def _check(
        self, signature: Signature, loaded: Mapping[str, Runnable], results: CaseResults, answers: Answers
    ) -> CheckedSignature:
        samples, raw = results.samples[signature.name], results.raw.get(signature.name)
        reference, tolerance = results.source, results.tolerance
        independent, session = answers.rows_independent, loaded["session"]
        if answers.deterministic:
            self._check_padding(signature, samples, reference, session, tolerance)
        sizes = self._options.batch_sizes
        with self._progress.step(f"Compare {signature.name} with the source") as step:
            found = compare_cases(
                signature, samples, sizes, reference, loaded, tolerance, padded=independent, advance=step.advance
            )
            parity = join([found, *results.compared.get(signature.name, ())], padded=independent)
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
        self, signature: Signature, samples: Tensors, reference: Runnable, session: Runnable, tolerance: Tolerance
    ) -> None:
        sequences = self._options.sequences
        if not sequences.buckets or not signature.has_sequences:
            return
        with self._progress.step(f"Check that padding does not change {signature.name}") as step:
            check_lengths(signature, samples, sequences, "--check")
            comparisons = check_padding(signature, samples, sequences, reference, session, tolerance)
            step.detail = f"{comparisons} comparison(s), up to a length of {sequences.buckets[-1]}"
