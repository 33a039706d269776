"""Checks in a session that each answer depends only on its own row, and that repeated requests get equal answers."""

from collections.abc import Callable
from typing import NamedTuple

from tpuserve_exporter.checks.case_runs import LEAST_ROWS
from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.repeated_answers import Change, find_change
from tpuserve_exporter.checks.row_independence import (
    Finding,
    count_fixed_rows,
    find_dependence,
    find_dependence_in_fixed,
)
from tpuserve_exporter.checks.training_left import describe_change, describe_harmless, describe_statistics
from tpuserve_exporter.dataflow.dependence import Dependence
from tpuserve_exporter.errors import OptionConflict, TrainingMode
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.samples.samples import add_neighbours, distinct_rows
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel


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
