"""Evaluates a written version on labelled rows, which shows whether its weights are the trained ones.

The comparison with the source cannot show that: the version of an untrained model equals its source too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tpuserve_exporter.checks.labelled_rows import Batch, LabelledRows, SignatureRows
from tpuserve_exporter.checks.metrics import Metric
from tpuserve_exporter.errors import ExpectationFailed, OptionConflict, SamplesUnfit, reason_of
from tpuserve_exporter.options.expectation import Expectation, LabelledOptions
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE
from tpuserve_exporter.signatures.labels import LABELS_FILE, read_labels
from tpuserve_exporter.terms.domain import Sampled
from tpuserve_exporter.terms.samples import refusal_of
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.loaded_model import open_session
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.manifest.version import Manifest, ManifestEvaluation, ManifestMetric

UNCHECKED: Final = "No labelled rows have shown that these weights are the trained ones: give --labelled and --expect"
_CAUSES: Final = (
    "Likely causes: the checkpoint is not the trained one (its step, --weights), inputs are prepared in another "
    "way than in training (--image-scale, tokens, the order of columns), or labels have another order or meaning "
    "(--labels, --label-key)"
)


_NOT_SHIFTED: Final = (
    ". Each label of perplexity is the token that the scores at its place predict, such as the next one"
)
# Rows to run at once in a version without a manifest.
_LARGEST_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A metric of one output, and the name of its labels in the file."""

    expectation: Expectation
    metric: Metric
    signature: Signature
    output: str
    labels: str
    rows: SignatureRows

    def add(self, batch: Batch, outputs: Tensors) -> None:
        spec, output = self.signature.outputs[self.output], np.asarray(outputs[self.output])
        try:
            if output.ndim == 0 or len(output) < batch.rows:
                raise SamplesUnfit(f"the output has shape {list(output.shape)} for {batch.rows} row(s)")
            labels = batch.labels(self.labels, [*self.metric.label_shapes(spec)])
            self.metric.add(labels, output[: batch.rows])
        except SamplesUnfit as error:
            raise SamplesUnfit(f"{self._where}: {error}") from error

    @property
    def _where(self) -> str:
        return f"{self.expectation.metric} of {self.signature.name}/{self.output}, labels {self.labels!r}"

    def finish(self) -> ManifestMetric:
        try:
            value = self.metric.value()
        except SamplesUnfit as error:
            raise SamplesUnfit(f"{self._where}: {error}") from error
        expected = self.expectation
        return ManifestMetric(
            metric=expected.metric,
            signature=self.signature.name,
            output=self.output,
            labels=self.labels,
            value=value if np.isfinite(value) else None,
            operator=expected.operator,
            bound=expected.bound,
            met=expected.is_met(value),
            note=self.metric.note,
        )


def evaluate(
    labelled: LabelledRows,
    signatures: Mapping[str, Signature],
    model: Sampled,
    batch_sizes: Sequence[int],
    advance: Callable[[int, int], None],
) -> ManifestEvaluation:
    """Run `model` on every row, the largest batch size at a time, and compute each metric. Blocks.

    `advance` gets the numbers of done rows and of all rows. `require` judges the result.

    Raises:
        OptionConflict: if several outputs fit an expectation.
        SamplesUnfit: if no signature takes the rows, or labels do not fit the output.
        BuilderFailed: if the user's function fails.
    """
    found = [_choose(labelled, one, signatures, model, batch_sizes) for one in labelled.options.expectations]
    total = 0
    for name in dict.fromkeys(one.signature.name for one in found):
        total = _run(labelled, [one for one in found if one.signature.name == name], model, advance)
    metrics = tuple(one.finish() for one in found)
    return ManifestEvaluation(file=labelled.name, sha256=labelled.sha256, rows=total, metrics=metrics)


def evaluate_version(
    version: Path, options: LabelledOptions, advance: Callable[[int, int], None]
) -> ManifestEvaluation:
    """Load a published version and evaluate it with its own batch sizes, padding and class names. Blocks.

    TensorFlow must be started. Raises as `evaluate`, and SessionLoadFailed.
    """
    manifest = _read_manifest(version)
    names = read_labels(labels) if (labels := version / LABELS_FILE).is_file() else ()
    signatures = () if manifest is None else tuple(manifest.signatures.values())
    inputs = [item for each in signatures for item in each.inputs.items()]
    pads = {name: one.pad_value for name, one in inputs if one.pad_value is not None}
    labelled = LabelledRows.open(options, names, SequenceOptions(pad_values=pads))
    sizes = sorted({size for each in signatures for size in each.batch_sizes}) or [_LARGEST_BATCH]
    with open_session(version) as session:
        return evaluate(labelled, session.signatures, session, sizes, advance)


def _read_manifest(version: Path) -> Manifest | None:
    """Read the manifest, or return None for a version of another exporter."""
    try:
        return Manifest.model_validate_json((version / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def _run(
    labelled: LabelledRows, measured: Sequence[_Measurement], model: Sampled, advance: Callable[[int, int], None]
) -> int:
    """Add every row to the metrics of one signature, and return the number of rows."""
    rows, done = measured[0].rows, 0
    keys = list(dict.fromkeys(one.labels for one in measured))
    total = rows.count(keys)
    # The session computes only the outputs that a metric reads.
    outputs = {one.output: one.signature.outputs[one.output] for one in measured}
    signature = replace(measured[0].signature, outputs=outputs)
    for batch, answers in _answers(labelled, rows, signature, keys, model):
        for one in measured:
            one.add(batch, answers)
        done += batch.rows
        advance(done, total)
    return total


def _answers(
    labelled: LabelledRows, rows: SignatureRows, signature: Signature, keys: Sequence[str], model: Sampled
) -> Iterator[tuple[Batch, Tensors]]:
    import tensorflow as tf

    done = 0
    for batch in rows.batches(keys, model):
        try:
            yield batch, model.run(signature, batch.inputs)
        except tf.errors.OpError as error:
            where = f"rows {done} to {done + batch.rows - 1} of {labelled.name}"
            raise SamplesUnfit(f"{signature.name} fails on {where}: {reason_of(error)}") from error
        done += batch.rows


def _choose(
    labelled: LabelledRows,
    expectation: Expectation,
    signatures: Mapping[str, Signature],
    model: Sampled,
    batch_sizes: Sequence[int],
) -> _Measurement:
    """Choose the first signature that has the output and takes the rows. `serving_default` comes first."""
    metric = labelled.make_metric(expectation)
    reasons = list[str]()
    for signature in sorted(signatures.values(), key=lambda one: one.name != DEFAULT_SIGNATURE):
        outputs = _outputs(expectation, metric, signature)
        if not outputs:
            continue
        try:
            rows = SignatureRows(labelled, signature, batch_sizes)
            key = rows.labels_of(expectation)
            first = next(rows.batches([key], model))
            # Several signatures may take the same rows of strings, of which one parses tf.Examples.
            if refusal := refusal_of(signature, first.inputs, model):
                raise SamplesUnfit(refusal)
        except SamplesUnfit as error:
            reasons.append(f"{signature.name}: {error}")
            continue
        if len(outputs) > 1:
            raise OptionConflict(
                f"--expect {expectation.metric} may mean any of the outputs {', '.join(outputs)} of {signature.name}. "
                f'Name one: "{expectation.metric}({outputs[0]}){expectation.operator}{expectation.bound:g}"'
            )
        return _Measurement(expectation, metric, signature, outputs[0], key, rows)
    if reasons:
        raise SamplesUnfit(f"--labelled {labelled.name} fits no signature ({'; '.join(reasons)})")
    listed = "; ".join(_list_outputs(one) for one in signatures.values())
    wanted = f"there is no output {expectation.output!r}" if expectation.output else f"no output is {metric.takes}"
    raise SamplesUnfit(f"--expect {expectation}: {wanted}. The outputs are {listed}")


def _list_outputs(signature: Signature) -> str:
    return f"{signature.name}: {', '.join(f'{name} {spec}' for name, spec in signature.outputs.items())}"


def _outputs(expectation: Expectation, metric: Metric, signature: Signature) -> list[str]:
    """Return the named output, or those that the metric may mean."""
    if wanted := expectation.output:
        return [name for name in signature.outputs if wanted in (name, f"{signature.name}/{name}")]
    fitting = [name for name, spec in signature.outputs.items() if metric.fits(spec)]
    return fitting if fitting or len(signature.outputs) > 1 else list(signature.outputs)


def require(evaluation: ManifestEvaluation) -> None:
    """Raise ExpectationFailed, with the evaluation, if a metric does not meet its bound."""
    failed = [one for one in evaluation.metrics if not one.met]
    if not failed:
        return
    described = "; ".join(f"{one.metric} is {one.describe(evaluation)}" for one in failed)
    infinite = "Answers or labels are NaN or infinite. " if any(one.value is None for one in failed) else ""
    causes = f"{_CAUSES}{_NOT_SHIFTED if any(one.metric == 'perplexity' for one in failed) else ''}"
    raise ExpectationFailed(f"{described}. {infinite}{causes}", evaluation=evaluation.model_dump(mode="json"))
