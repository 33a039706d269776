"""Results of Classify, Regress and MultiInference as messages and JSON, encoded without an object for each number."""

import binascii
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import orjson

from tpuserve_formats.varint import varint
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.wire.model_spec import encode_model_spec

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
