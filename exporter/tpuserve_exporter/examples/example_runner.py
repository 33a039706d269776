"""Sends examples to a written version, and rows of the checks as samples for the report."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.examples.matching import match_signature
from tpuserve_exporter.examples.picture import show_inputs
from tpuserve_exporter.examples.prediction import Prediction
from tpuserve_exporter.examples.verdict import judge
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, IMAGE_KIND, SignatureRequest
from tpuserve_exporter.runnable import Runnable
from tpuserve_exporter.samples.samples import distinct_rows, take_rows
from tpuserve_exporter.signature import Signature, Tensors

# Samples in a report, and wrong answers in a message.
_MOST_SHOWN = 12
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ShownSample:
    """One input and its answer. Only examples have `expected`. An empty `problem` means that the answer is correct."""

    signature: str
    name: str
    shown: Mapping[str, str]
    prediction: Prediction
    expected: str | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        passed = None if self.expected is None else not self.problem
        return {
            "signature": self.signature, "name": self.name, **self.shown, "prediction": self.prediction.to_json(),
            "expected": self.expected, "passed": passed, "problem": self.problem,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExampleRunner:
    """A version, loaded as servers load it, with the checks' results.

    `requests` are the signatures of the command line. `rows_from` names the source of the checks' inputs.
    """

    version: Runnable
    checked: CheckedVersion
    requests: tuple[SignatureRequest, ...]
    labels: Sequence[str]
    rows_from: str = "made-up input"

    def run(self, examples: Sequence[Example]) -> list[ShownSample]:
        """Run every example. Return up to 12 answers: first those of the examples, then those of rows of the checks.

        Raises:
            ParityFailed: if an answer is wrong, with up to 12 answers as `samples`, the wrong ones first.
            SamplesUnfit: if no signature takes an example.
        """
        answers = [self._run_example(example) for example in examples]
        shown = list(itertools.islice(itertools.chain(answers, self._run_samples()), _MOST_SHOWN))
        wrong = [one for one in answers if one.problem]
        if wrong:
            named = "; ".join(f"{one.name}: {one.problem}" for one in wrong[:_MOST_NAMED])
            more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            raise ParityFailed(
                f"{len(wrong)} of {len(answers)} examples have a wrong answer. {named}{more}",
                samples=[one.to_json() for one in [*wrong, *(one for one in shown if not one.problem)][:_MOST_SHOWN]],
            )
        return shown

    def _run_example(self, example: Example) -> ShownSample:
        signatures = {name: one.signature for name, one in self.checked.signatures.items()}
        signature, inputs = match_signature(example, signatures, self.requests)
        outputs = self._run(example, signature, inputs)
        prediction = Prediction.read(outputs, self.labels)
        problem = judge(example, outputs, prediction, self.labels, self.checked.tolerance)
        expected = example.expected if isinstance(example.expected, str) else "an array"
        return ShownSample(signature.name, example.name, show_inputs(inputs), prediction, expected, problem)

    def _run(self, example: Example, signature: Signature, inputs: Tensors) -> Tensors:
        import tensorflow as tf

        try:
            return self.version.run(signature, inputs)
        except tf.errors.OpError as error:
            raise SamplesUnfit(f"{example}: {signature.name} fails on this input: {reason_of(error)}") from error

    def _run_samples(self) -> Iterator[ShownSample]:
        """Run single rows of the checks, for the signature with the most readable inputs."""
        one = self._choose()
        for number, inputs in enumerate(itertools.islice(_split_rows(one), _MOST_SHOWN)):
            prediction = self._try(one.signature, inputs)
            if prediction is not None:
                name = f"row {number}, {self.rows_from}"
                yield ShownSample(one.signature.name, name, show_inputs(inputs), prediction)

    def _try(self, signature: Signature, inputs: Tensors) -> Prediction | None:
        """Return the prediction, or None if the version refuses a single row. The report then has fewer samples."""
        import tensorflow as tf

        try:
            return Prediction.read(self.version.run(signature, inputs), self.labels)
        except (tf.errors.OpError, SamplesUnfit):
            return None

    def _choose(self) -> CheckedSignature:
        images = [one.name for one in self.requests if one.kind == IMAGE_KIND]
        names = [*images, DEFAULT_SIGNATURE, *self.checked.signatures]
        return self.checked.signatures[next(name for name in names if name in self.checked.signatures)]


def _split_rows(one: CheckedSignature) -> Iterator[Tensors]:
    """Yield each distinct row, or all inputs of a signature without rows."""
    if not one.signature.is_batchable:
        yield one.samples
        return
    for row in distinct_rows(one.samples):
        yield take_rows(one.samples, slice(row, row + 1))
