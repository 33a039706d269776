"""Sends examples to a written version, and rows of the checks as samples for the report."""

import base64
import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.prediction import Prediction, describe_array
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, IMAGE_KIND, SignatureRequest
from tpuserve_exporter.signatures.image_decoding import decode_image
from tpuserve_exporter.terms.samples import distinct_rows, fit_array, fit_input, take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors, TensorSpec


def judge(
    example: Example, outputs: Tensors, prediction: Prediction, labels: Sequence[str], tolerance: Tolerance
) -> str:
    """Return the reason why the answer is wrong, or an empty string if it is correct.

    Raises SamplesUnfit for an impossible expectation: a label that no class has, or a shape that no output has.
    """
    if isinstance(example.expected, str):
        return _judge_class(example, example.expected, prediction, labels)
    off = _judge_arrays(example, example.expected, outputs, tolerance)
    return f"{off}, received {prediction}" if off else ""


def _judge_class(example: Example, expected: str, prediction: Prediction, labels: Sequence[str]) -> str:
    best = prediction.ranked[0] if prediction.ranked else None
    if best is not None and math.isnan(best.score):
        return f"expected {expected}, received NaN ({prediction})"
    received = [*prediction.texts, *([best.label] if best is not None and best.label else [])]
    if expected in received:
        return ""
    if expected not in labels and expected.isdecimal() and best is not None:
        number = float(expected)  # int() refuses thousands of digits
        if number >= prediction.count:
            raise SamplesUnfit(
                f"{example} expects class {expected}, but the scores are of classes 0 to {prediction.count - 1}"
            )
        return "" if number == best.index else f"expected class {expected}, received {_received(prediction)}"
    if not received:
        raise SamplesUnfit(_no_names(example, expected, prediction, labels))
    if labels and expected not in labels and not prediction.texts:
        near = difflib.get_close_matches(expected, labels, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise SamplesUnfit(f"{example} expects {expected!r}, but no class has this name{hint}")
    return f"expected {expected}, received {_received(prediction)}"


def _received(prediction: Prediction) -> str:
    """Return `siamese (top 3: siamese 0.9, tabby 0.06, fox 0.01)`."""
    best = [one.label or str(one.index) for one in prediction.ranked[:1]]
    first = ", ".join(prediction.texts or best)
    return f"{first} ({prediction})" if prediction.ranked else first


def _no_names(example: Example, expected: str, prediction: Prediction, labels: Sequence[str]) -> str:
    if prediction.ranked and labels:
        return (
            f"{example} expects {expected!r}, but --labels has {len(labels)} classes and the scores have "
            f"{prediction.count}"
        )
    if prediction.ranked:
        return (
            f"{example} expects {expected!r}, but the classes have no names. Use --labels FILE, or expect a class "
            "number"
        )
    outputs = ", ".join(prediction.outputs)
    return (
        f"{example} expects {expected!r}, but no output ({outputs}) is a text or the scores of one row. Expect an "
        ".npy file"
    )


def _judge_arrays(example: Example, expected: Mapping[str, Array], outputs: Tensors, tolerance: Tolerance) -> str:
    if expected.keys() == {""} and len(outputs) == 1:
        expected = {next(iter(outputs)): expected[""]}
    if unknown := expected.keys() - outputs.keys():
        named = f"has {min(unknown)!r}" if min(unknown) else "is one array"
        names = ", ".join(sorted(outputs))
        raise SamplesUnfit(
            f"{example}: the expected file {named}, but the outputs are {names}. Use an .npz file with their names"
        )
    wanted = {
        name: _fit(f"{example}: output {name!r}", value, np.asarray(outputs[name])) for name, value in expected.items()
    }
    found = compare(wanted, {name: outputs[name] for name in wanted}, tolerance)
    return f"{found.beyond}. The tolerance is {tolerance} (--atol, --rtol)" if found.beyond else ""


def _fit(subject: str, value: Array, actual: Array) -> Array:
    """Convert to the dtype of the answer, and add the batch dimension if it is missing."""
    row = value[np.newaxis] if value.ndim == actual.ndim - 1 else value
    dtype = "string" if actual.dtype == object else actual.dtype.name
    return fit_array(row, TensorSpec(dtype, actual.shape), subject, "the expected array")


# Pixels on the longer side of an image: the limit in a report, and the limit of lossless compression.
_LARGEST, _LOSSLESS = 160, 64
_MOST_TEXT = 400
_LEAST_SIDE = 4
_CHANNELS = (1, 3, 4)


def show_inputs(inputs: Tensors) -> dict[str, str]:
    """Format one row of inputs: the first image as a data URI, `image`, and the other inputs as `text`."""
    shown = [_show_one(np.asarray(value)) for value in inputs.values()]
    image = next((uri for uri, _ in shown if uri), "")
    texts = [
        f"{name}: {text}" if len(shown) > 1 else text for name, (_, text) in zip(inputs, shown, strict=True) if text
    ]
    return ({"image": image} if image else {}) | ({"text": "\n".join(texts)} if texts else {})


def _show_one(value: Array) -> tuple[str, str]:
    """Return an image as a data URI, or else a text."""
    if value.dtype == object and value.size == 1:
        content = value.reshape(-1)[0]
        return _show_bytes(content if isinstance(content, bytes) else str(content).encode())
    row = value[0] if value.ndim and len(value) == 1 else value
    pixels = _as_pixels(row)
    return ("", describe_array(value)) if pixels is None else (_encode(pixels), "")


def _show_bytes(content: bytes) -> tuple[str, str]:
    """Format an image file as an image, UTF-8 as text, and other bytes by their number."""
    import tensorflow as tf

    try:
        return _encode(decode_image(tf.constant(content), 3).numpy()), ""
    except tf.errors.OpError:
        pass
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "", f"{len(content)} bytes"
    return "", text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _as_pixels(row: Array) -> Array | None:
    """Convert numbers with the shape of an image to uint8 [height, width, channels]. Return None for others."""
    if row.dtype.kind not in "uif" or row.ndim not in (2, 3) or min(row.shape[-2:] if row.ndim == 2 else row.shape) < 1:
        return None
    if row.ndim == 2:
        row = row[..., np.newaxis]
        if row.shape[0] != row.shape[1]:  # more likely a sequence of vectors
            return None
    elif row.shape[2] not in _CHANNELS:
        row = np.moveaxis(row, 0, -1)
    if row.shape[2] not in _CHANNELS or min(row.shape[:2]) < _LEAST_SIDE or not np.isfinite(row).all():
        return None
    return row if row.dtype == np.uint8 else _to_bytes(row.astype(np.float64))


def _to_bytes(row: Array) -> Array:
    """Scale values of 0..1, -1..1 or 0..255 to bytes, and stretch values of any other range."""
    low, high = float(row.min()), float(row.max())
    known = [(0, 1), (-1, 1), (0, 255)]
    start, end = next((one for one in known if one[0] <= low and high <= one[1]), (low, high))
    # Halves, because the difference of two finite numbers may be infinite.
    half = end / 2 - start / 2
    return np.rint((row / 2 - start / 2) / (half or 1.0) * 255).astype(np.uint8)


def _encode(pixels: Array) -> str:
    """Return a data URI: PNG if the image is small or has alpha, else JPEG."""
    import tensorflow as tf

    side = max(pixels.shape[:2])
    if side > _LARGEST:
        size = [max(1, length * _LARGEST // side) for length in pixels.shape[:2]]
        pixels = np.rint(tf.image.resize(pixels, size, "area").numpy()).astype(np.uint8)
    if side <= _LOSSLESS or pixels.shape[2] == 4:
        return _uri("png", tf.io.encode_png(pixels).numpy())
    return _uri("jpeg", tf.io.encode_jpeg(pixels, quality=85).numpy())


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def match_signature(
    example: Example, signatures: Mapping[str, Signature], requests: tuple[SignatureRequest, ...]
) -> tuple[Signature, Tensors]:
    """Return the first signature that takes the example, and its inputs. `serving_default` comes first.

    Raises SamplesUnfit with the inputs of each signature if no signature takes it.
    """
    kinds = {one.name: one.kind for one in requests}
    if requests:
        kinds.setdefault(DEFAULT_SIGNATURE, requests[0].kind)
    reasons = list[str]()
    for signature in sorted(signatures.values(), key=lambda one: one.name != DEFAULT_SIGNATURE):
        try:
            return signature, _inputs(example, signature, kinds.get(signature.name))
        except SamplesUnfit as error:
            reasons.append(str(error))
    hint = ". Add --signature photo=image_bytes" if example.kind == "image" else ""
    raise SamplesUnfit(f"{example}: no signature takes this input ({'; '.join(reasons)}){hint}")


def _inputs(example: Example, signature: Signature, kind: str | None) -> Tensors:
    """Return the example as inputs of `signature`. `kind` is None for the signatures of a copied SavedModel."""
    if isinstance(example.content, bytes):
        takes = kind is None or ":" in kind or (kind == IMAGE_KIND and example.kind == "image")
        name = _only_string(signature) if takes else None
        if name is None:
            raise SamplesUnfit(f"{signature.name} takes no {example.kind}")
        return {name: _as_row(np.array(example.content, object), signature.inputs[name])}
    named = _name_arrays(example.content, signature)
    if unknown := named.keys() - signature.inputs.keys():
        raise SamplesUnfit(f"{signature.name} has no input {min(unknown)!r}")
    if missing := signature.inputs.keys() - named.keys():
        raise SamplesUnfit(f"{signature.name} also needs the input {min(missing)!r}")
    return {name: fit_input(name, spec, _as_row(named[name], spec)) for name, spec in signature.inputs.items()}


def _only_string(signature: Signature) -> str | None:
    found = [name for name, spec in signature.inputs.items() if spec.dtype == "string" and spec.shape in ((None,), ())]
    return found[0] if len(found) == len(signature.inputs) == 1 else None


def _name_arrays(arrays: Mapping[str, Array], signature: Signature) -> Mapping[str, Array]:
    """Give an array without a name the name of the only input."""
    if arrays.keys() != {""}:
        return arrays
    if len(signature.inputs) != 1:
        raise SamplesUnfit(
            f"{signature.name} has several inputs. Name the arrays: {', '.join(sorted(signature.inputs))}"
        )
    return {next(iter(signature.inputs)): arrays[""]}


def _as_row(value: Array, spec: TensorSpec) -> Array:
    """Add the batch dimension if the input has one and the value lacks it."""
    lacks = spec.shape is not None and spec.has_batch_dimension and value.ndim == len(spec.shape) - 1
    return value[np.newaxis] if lacks else value


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
