"""Classify, Regress and MultiInference: the signatures that a request runs, and the results as messages and JSON.

Source of the rules and messages: tensorflow_serving/servables/tensorflow/classifier.cc and regressor.cc. Results are
encoded without an object for each number.
"""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import orjson

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_formats.messages.official import DATA_TYPE
from tpuserve_formats.varint import varint
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors
from tpuserve_server.wire.example_request import InferenceTask
from tpuserve_server.wire.model_messages import encode_model_spec, signature_def

# The only input, of serialized tf.Examples (tensorflow/saved_model/signature_constants).
EXAMPLES_INPUT: Final = "inputs"
_CLASSES: Final = "classes"
_SCORES: Final = "scores"
_REGRESSIONS: Final = "outputs"


class Classify:
    """`classes` (string [n, c]), `scores` (float32 [n, c]), or both.

    Both methods raise InvalidArgument for a signature, or outputs, that do not fit them.
    """

    name: Final = "Classify"
    request_name: Final = "ClassificationRequest"
    method_name: Final = "tensorflow/serving/classify"

    def output_names(self, signature: Signature, *, check_method_name: bool) -> tuple[str, ...]:
        """Return the one or two outputs to fetch."""
        if check_method_name:
            _check_method_name("classification", self.method_name, signature)
        _check_one_input(signature)
        if len(signature.outputs) not in (1, 2):
            raise InvalidArgument(f"Expected one or two output Tensors, found {len(signature.outputs)}")
        _check_examples_input("classification", signature)
        names = tuple(name for name in (_CLASSES, _SCORES) if name in signature.outputs)
        if not names:
            raise InvalidArgument(
                'Expected classification signature outputs to contain at least one of "classes" or "scores".'
                f" Signature was: {signature_def(signature)}"
            )
        return names

    def encode(self, outputs: Tensors, examples: int) -> bytes:
        """Return a serialized ClassificationResult of `examples` rows."""
        return encode_classifications(*self._checked(outputs, examples))

    def encode_json(self, outputs: Tensors, examples: int) -> bytes:
        """Return the REST body of `examples` rows."""
        return json_classifications(*self._checked(outputs, examples))

    def _checked(self, outputs: Tensors, examples: int) -> tuple[Array | None, Array | None]:
        classes, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
        if classes is not None:
            _check_matrix(_CLASSES, classes, np.dtype(np.object_), examples)
        if scores is not None:
            _check_matrix(_SCORES, scores, np.dtype(np.float32), examples)
        if classes is not None and scores is not None and classes.shape[1] != scores.shape[1]:
            raise InvalidArgument(
                f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
            )
        return classes, scores


class Regress:
    """`outputs` (float32 [n] or [n, 1])."""

    name: Final = "Regress"
    request_name: Final = "RegressionRequest"
    method_name: Final = "tensorflow/serving/regress"

    def output_names(self, signature: Signature, *, check_method_name: bool) -> tuple[str, ...]:
        """Return the output to fetch."""
        if check_method_name:
            _check_method_name("regression", self.method_name, signature)
        _check_one_input(signature)
        if len(signature.outputs) != 1:
            raise InvalidArgument("Expected one output Tensor.")
        _check_examples_input("regression", signature)
        if _REGRESSIONS not in signature.outputs:
            raise InvalidArgument(f"No regression outputs found in SignatureDef: {signature_def(signature)}")
        return (_REGRESSIONS,)

    def encode(self, outputs: Tensors, examples: int) -> bytes:
        """Return a serialized RegressionResult of `examples` rows."""
        return encode_regressions(self._checked(outputs, examples))

    def encode_json(self, outputs: Tensors, examples: int) -> bytes:
        """Return the REST body of `examples` rows."""
        return json_regressions(self._checked(outputs, examples))

    def _checked(self, outputs: Tensors, examples: int) -> Array:
        values = outputs[_REGRESSIONS]
        if not (values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)):
            raise InvalidArgument(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
                f"{_shape_text(values)}"
            )
        if len(values) != examples:
            raise InvalidArgument(f"Input batch size did not match output batch size: {examples} vs. {len(values)}")
        if values.dtype != np.float32:
            raise InvalidArgument(f"Expected output Tensor of DT_FLOAT.  Got: {_type_text(values)}")
        return values.reshape(-1)


CLASSIFY: Final = Classify()
REGRESS: Final = Regress()
InferenceMethod: TypeAlias = Classify | Regress
_BY_METHOD_NAME: Final[dict[str, InferenceMethod]] = {method.method_name: method for method in (CLASSIFY, REGRESS)}


def _check_method_name(kind: str, expected: str, signature: Signature) -> None:
    if signature.method_name != expected:
        raise InvalidArgument(f"Expected {kind} signature method_name to be {expected}. Was: {signature.method_name}")


def _check_one_input(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise InvalidArgument("Expected one input Tensor.")


def _check_examples_input(kind: str, signature: Signature) -> None:
    if EXAMPLES_INPUT not in signature.inputs:
        raise InvalidArgument(f"No {kind} inputs found in SignatureDef: {signature_def(signature)}")


def _check_matrix(name: str, array: Array, dtype: "np.dtype[np.generic]", examples: int) -> None:
    if array.ndim != 2:
        raise InvalidArgument(f"Expected Tensor shape: [batch_size num_classes] but got {_shape_text(array)}")
    if array.dtype != dtype:
        expected = "DT_STRING" if dtype.hasobject else "DT_FLOAT"
        raise InvalidArgument(f"Expected {name} Tensor of {expected}. Got: {_type_text(array)}")
    if len(array) != examples:
        raise InvalidArgument(f"Expected {name} output batch size of {examples}. Got: {len(array)}")


def _shape_text(array: Array) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _type_text(array: Array) -> str:
    wire_type = BY_DTYPE.get(array.dtype)
    return DATA_TYPE.values_by_number[wire_type.number].name if wire_type else str(array.dtype)


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """A signature that fits its method, and the outputs that the method needs."""

    method: InferenceMethod
    signature: Signature
    output_names: tuple[str, ...]


def find_run(
    signatures: Mapping[str, Signature], method: InferenceMethod, signature_name: str, *, check_method_name: bool
) -> ExampleRun:
    """Find the run for a Classify or Regress request. Raises InvalidArgument if the signature is unknown or unsuitable.

    Source: classifier.cc.
    """
    signature = signatures.get(signature_name)
    if signature is None:
        raise InvalidArgument(f"No signature was found with the name: {signature_name}")
    return ExampleRun(method, signature, method.output_names(signature, check_method_name=check_method_name))


def find_task_runs(
    signatures: Mapping[str, Signature], tasks: Sequence[InferenceTask], *, check_method_names: bool
) -> list[ExampleRun]:
    """Find a run for each task of a MultiInference request, in their order (multi_inference.cc).

    Raises:
        InvalidArgument: the tasks name different models or the same signature twice, or a signature is unknown or does
            not fit its method.
        Unimplemented: a task's method is neither Classify nor Regress.
    """
    runs: dict[str, ExampleRun] = {}
    for task in tasks:
        _check_model(task, tasks[0])
        name = task.signature_name
        if name in runs:
            raise InvalidArgument(f"Duplicate evaluation of signature: {name}")
        signature = signatures.get(name)
        if signature is None:
            raise InvalidArgument(f"Requested signature not found in model graph: {name}")
        method = _BY_METHOD_NAME.get(task.method_name)
        if method is None:
            raise Unimplemented(f"Unsupported signature method_name: {shown(task.method_name)}")
        outputs = method.output_names(signature, check_method_name=check_method_names)
        runs[name] = ExampleRun(method, signature, outputs)
    return list(runs.values())


def _check_model(task: InferenceTask, first: InferenceTask) -> None:
    if not task.spec.name:
        raise InvalidArgument("Found ModelSpec with an empty model name.")
    if task.spec.name != first.spec.name:
        raise InvalidArgument("All ModelSpecs in a MultiInferenceRequest must access the same model name.")


# Fields 1 to 3, length-delimited: tensorflow_serving/apis/{classification,regression,inference}.proto.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_SCORE_TAG = b"\x15"  # Class.score = 2
_VALUE_TAG = b"\x0d"  # Regression.value = 1
# Layout of a Regression or a Class without a label, in a repeated field 1: messages with a single float.
_FLOAT_MESSAGE = np.dtype([("tag", "u1"), ("size", "u1"), ("value_tag", "u1"), ("value", "<f4")])
_FLOAT_FIELD_BYTES = 5
_MAX_CACHED_LABEL_BYTES = 64
# Values whose JSON is written in a millisecond.
_PART_VALUES = 1 << 12


def encode_classifications(classes: Array | None, scores: Array | None) -> bytes:
    """Serialize a ClassificationResult from `classes` (object, bytes) and `scores` (float32), [n, c] each."""
    if classes is not None:
        rows = _class_rows(classes, scores)
    else:
        rows = [] if scores is None else [_float_messages(_SCORE_TAG, row) for row in scores]
    return b"".join([part for row in rows for part in (_FIELD_1, varint(len(row)), row)])


def encode_regressions(values: Array) -> bytes:
    """Serialize a RegressionResult from float32 [n]."""
    return _float_messages(_VALUE_TAG, values)


def encode_response(result: bytes, servable: ServableId, signature_name: str) -> bytes:
    """Serialize a ClassificationResponse or RegressionResponse: in both, result = 1 and spec = 2."""
    spec = encode_model_spec(servable, signature_name)
    return b"".join((_FIELD_1, varint(len(result)), result, _FIELD_2, varint(len(spec)), spec))


def encode_inference_result(result: bytes, servable: ServableId, signature_name: str, *, is_regression: bool) -> bytes:
    """Serialize one entry of a MultiInferenceResponse: results = 1, {spec = 1, result = 2 or 3}.

    The concatenated entries are the response.
    """
    spec = encode_model_spec(servable, signature_name)
    tag = _FIELD_3 if is_regression else _FIELD_2
    entry = b"".join((_FIELD_1, varint(len(spec)), spec, tag, varint(len(result)), result))
    return b"".join((_FIELD_1, varint(len(entry)), entry))


def json_classifications(classes: Array | None, scores: Array | None) -> bytes:
    """Return `{"results": [[[label, score], …], …]}`. A missing label is empty and a missing score is 0.0.

    A label that is not UTF-8 becomes `{"b64": …}`, as strings in predictions do (upstream writes invalid JSON).
    """
    shape = (classes if classes is not None else scores if scores is not None else np.empty((0, 0))).shape
    rows: list[bytes] = []
    step = max(1, _PART_VALUES // max(shape[1], 1))
    for start in range(0, shape[0], step):
        part = slice(start, min(start + step, shape[0]))
        labels = None if classes is None else classes[part]
        numbers = None if scores is None else scores[part]
        rows += _json_rows(labels, numbers, part.stop - start, shape[1])
        if step < shape[0]:
            let_others_run()
    return b"".join((b'{"results":[', b",".join(rows), b"]}"))


def _json_rows(classes: Array | None, scores: Array | None, count: int, width: int) -> list[bytes]:
    labels = [b'""'] * (count * width) if classes is None else _label_texts(classes.reshape(-1).tolist())
    numbers = [b"0.0"] * (count * width) if scores is None else _number_texts(scores.reshape(-1))
    pairs = [b"[%b,%b]" % pair for pair in zip(labels, numbers, strict=True)]
    return [b"[%b]" % b",".join(pairs[row * width : (row + 1) * width]) for row in range(count)]


def json_regressions(values: Array) -> bytes:
    """Return `{"results": [value, …]}` from float32 [n]."""
    parts: list[bytes] = []
    for start in range(0, len(values), _PART_VALUES):
        parts += _number_texts(values[start : start + _PART_VALUES])
        if len(values) > _PART_VALUES:
            let_others_run()
    return b"".join((b'{"results":[', b",".join(parts), b"]}"))


def _float_messages(value_tag: bytes, values: Array) -> bytes:
    messages = np.empty(values.shape, _FLOAT_MESSAGE)
    messages["tag"], messages["size"], messages["value_tag"] = _FIELD_1[0], _FLOAT_FIELD_BYTES, value_tag[0]
    messages["value"] = values
    return messages.tobytes()


def _class_rows(classes: Array, scores: Array | None) -> list[bytes]:
    """Encode the Class messages of each row."""
    if scores is None:
        return [b"".join([_class_head(label, False) for label in row]) for row in classes]
    if classes.size and (classes == classes[0]).all():
        return _alike_rows(classes[0], scores)
    heads = {label: _class_head(label, True) for label in set(classes.flat)}
    rows = []
    for labels, values in zip(classes, scores, strict=True):
        raw = values.tobytes()
        floats = [raw[start : start + 4] for start in range(0, len(raw), 4)]
        rows.append(b"".join([part for pair in zip(labels, floats, strict=True) for part in (heads[pair[0]], pair[1])]))
    return rows


def _alike_rows(labels: Array, scores: Array) -> list[bytes]:
    """Encode rows with the same labels: copy the bytes of one row and replace the scores.

    Models that return all classes instead of the best few have such rows.
    """
    messages = [_class_head(label, True) + bytes(4) for label in labels]
    rows = np.tile(np.frombuffer(b"".join(messages), np.uint8), (len(scores), 1))
    ends = np.cumsum([len(message) for message in messages], dtype=np.intp)
    places = (ends[:, np.newaxis] - np.arange(4, 0, -1)).reshape(-1)
    rows[:, places] = np.ascontiguousarray(scores).view(np.uint8).reshape(len(scores), -1)
    return [row.tobytes() for row in rows]


def _class_head(label: bytes, has_score: bool) -> bytes:
    """Encode a Class in its repeated field, without the four bytes of the score."""
    # Class labels repeat, so they are cached. A model may generate longer labels, which would fill memory.
    return (_cached_head if len(label) <= _MAX_CACHED_LABEL_BYTES else _make_head)(label, has_score)


def _make_head(label: bytes, has_score: bool) -> bytes:
    field = b"".join((_FIELD_1, varint(len(label)), label))
    size = len(field) + (_FLOAT_FIELD_BYTES if has_score else 0)
    return b"".join((_FIELD_1, varint(size), field, _SCORE_TAG if has_score else b""))


_cached_head = lru_cache(maxsize=8192)(_make_head)


def _label_texts(labels: Sequence[bytes]) -> list[bytes]:
    texts = {label: _label_text(label) for label in set(labels)}
    return [texts[label] for label in labels]


def _label_text(label: bytes) -> bytes:
    try:
        return orjson.dumps(label.decode())
    except UnicodeDecodeError:
        return b'{"b64":"%b"}' % binascii.b2a_base64(label, newline=False)


def _number_texts(values: Array) -> list[bytes]:
    """Return each number's shortest text. It never looks like an integer; NaN and infinities are bare tokens."""
    if not len(values):
        return []
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    texts = text[1:-1].split(b",")
    for index in np.flatnonzero(~np.isfinite(values)):
        value = values[index]
        texts[index] = b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
    return texts
