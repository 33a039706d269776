"""Asking a written version about examples, and about a few inputs of its checks to show what it answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.examples.picture import show_inputs
from tpuserve_exporter.examples.prediction import Prediction
from tpuserve_exporter.examples.question import ask_with
from tpuserve_exporter.examples.verdict import judge
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, IMAGE_KIND, SignatureRequest
from tpuserve_exporter.runnable import Runnable
from tpuserve_exporter.samples.samples import distinct_rows, take_rows
from tpuserve_exporter.signature import Signature, Tensors

# In a report: enough to see whether answers make sense.
MOST_SHOWN = 12
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ShownSample:
    """One input and its answer. `expected` and `problem` are for examples: an empty problem is an expected answer."""

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
class ExampleAsking:
    """Asks `version`, which answers as a server does. `requests` are the signatures that the export was asked for.

    `rows_from` names the source of the checks' inputs.
    """

    version: Runnable
    checked: CheckedVersion
    requests: tuple[SignatureRequest, ...]
    labels: Sequence[str]
    rows_from: str = "made up"

    def ask(self, examples: Sequence[Example]) -> list[ShownSample]:
        """Every example, and after them inputs of the checks, up to 12.

        Raises ParityFailed where an answer is not the expected one, with all that was asked as `samples`, and
        SamplesUnfit for an example that no signature takes.
        """
        asked = [self._ask(example) for example in examples]
        shown = [*asked[:MOST_SHOWN], *self._ask_samples(MOST_SHOWN - len(asked[:MOST_SHOWN]))]
        wrong = [one for one in asked if one.problem]
        if wrong:
            named = "; ".join(f"{one.name}: {one.problem}" for one in wrong[:_MOST_NAMED])
            more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            raise ParityFailed(
                f"{len(wrong)} of {len(asked)} examples answered otherwise than expected. {named}{more}",
                samples=[one.to_json() for one in [*wrong, *(one for one in shown if not one.problem)][:MOST_SHOWN]],
            )
        return shown

    def _ask(self, example: Example) -> ShownSample:
        signatures = {name: one.signature for name, one in self.checked.signatures.items()}
        signature, inputs = ask_with(example, signatures, self.requests)
        outputs = self._run(example, signature, inputs)
        prediction = Prediction.read(outputs, self.labels)
        problem = judge(example, outputs, prediction, self.labels, self._tolerance)
        expected = example.expected if isinstance(example.expected, str) else "an array"
        return ShownSample(signature.name, example.name, show_inputs(inputs), prediction, expected, problem)

    @property
    def _tolerance(self) -> Tolerance:
        return self.checked.tolerance

    def _run(self, example: Example, signature: Signature, inputs: Tensors) -> Tensors:
        import tensorflow as tf

        try:
            return self.version.run(signature, inputs)
        except tf.errors.OpError as error:
            raise SamplesUnfit(f"{example}: {signature.name} fails on it: {reason_of(error)}") from error

    def _ask_samples(self, count: int) -> Iterator[ShownSample]:
        """Rows that the version was checked with, of the signature that shows the most."""
        one = self._choose()
        rows = distinct_rows(one.samples)[:count] if one.signature.is_batchable else [None][:count]
        for number, row in enumerate(rows):
            inputs = one.samples if row is None else take_rows(one.samples, slice(row, row + 1))
            prediction = self._try(one.signature, inputs)
            if prediction is not None:
                yield ShownSample(
                    one.signature.name, f"row {number}, {self.rows_from}", show_inputs(inputs), prediction
                )

    def _try(self, signature: Signature, inputs: Tensors) -> Prediction | None:
        """None where a row of a checked batch cannot be asked alone: the report then has fewer samples."""
        import tensorflow as tf

        try:
            return Prediction.read(self.version.run(signature, inputs), self.labels)
        except (tf.errors.OpError, SamplesUnfit):
            return None

    def _choose(self) -> CheckedSignature:
        images = [one.name for one in self.requests if one.kind == IMAGE_KIND]
        names = [*images, DEFAULT_SIGNATURE, *self.checked.signatures]
        return self.checked.signatures[next(name for name in names if name in self.checked.signatures)]
