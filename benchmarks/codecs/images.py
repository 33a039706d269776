"""Cost of an image in the wire codecs, next to TensorFlow's and Python's own functions.

A section of `python -m benchmarks codecs`: milliseconds per call, the median of many.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from benchmarks.codecs.report import CodecCost, CodecTable
from tpuserve_formats.tensor_proto import decode_tensor, encode_tensor
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Array, Signature, TensorSpec
from tpuserve_server.wire.json.predict import decode_predict_inputs, parse_predict_body
from tpuserve_server.wire.json.response import encode_predictions

ROUNDS = 25
SHAPE = (1, 224, 224, 3)  # 150,528 values
RANDOM = np.random.default_rng(0)
FLOATS = RANDOM.random(SHAPE, np.float32)
IDS = RANDOM.integers(0, 1 << 31, SHAPE)
STRINGS = np.array([b"%x" % value for value in IDS.flat[:].tolist()], np.object_)


@dataclass(frozen=True)
class Row:
    """One comparison. `goal_ms` is the largest acceptable time of `tpuserve` on a quiet machine, or None."""

    what: str
    tpuserve: Callable[[], object]
    plain: Callable[[], object]
    goal_ms: float | None = None


def measure() -> CodecTable:
    """Time TensorProto and JSON codecs of an image. Takes half a minute."""
    return CodecTable("150,528 values: an image of 224 x 224 x 3", "ms", [row_cost(row) for row in _rows()])


def row_cost(row: Row) -> CodecCost:
    """Time both functions alternately, so that they run under the same conditions."""
    pairs = [(_ms(row.tpuserve), _ms(row.plain)) for _ in range(ROUNDS)]
    tpuserve, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    return CodecCost(row.what, tpuserve, plain, row.goal_ms)


def _rows() -> list[Row]:
    return [*proto_rows(), *json_rows()]


def proto_rows() -> list[Row]:
    """Return comparisons of TensorProto with typed fields. make_tensor_proto itself uses tensor_content for numbers."""
    floats, ids, strings = (typed(array) for array in (FLOATS, IDS, STRINGS))
    return [
        Row("TensorProto to array, float_val", lambda: decode(floats), lambda: plain_decode(floats), 1.5),
        Row("TensorProto to array, int64_val", lambda: decode(ids), lambda: plain_decode(ids)),
        Row("TensorProto to array, string_val", lambda: decode(strings), lambda: plain_decode(strings)),
        Row("array to TensorProto, float_val", lambda: encode_tensor(FLOATS), lambda: typed(FLOATS), 1.0),
        Row("array to TensorProto, int64_val", lambda: encode_tensor(IDS), lambda: typed(IDS)),
        Row("array to TensorProto, string_val", lambda: encode_tensor(STRINGS), lambda: typed(STRINGS)),
        Row(
            "array to TensorProto, tensor_content",
            lambda: encode_tensor(FLOATS, as_content=True),
            lambda: tf.make_tensor_proto(FLOATS).SerializeToString(),
        ),
    ]


def json_rows() -> list[Row]:
    """Return comparisons of REST bodies.

    The bodies contain an image with all digits of its doubles, the same image with float32 digits, pixels, and a
    response.
    """
    doubles = json.dumps({"instances": FLOATS.astype(np.float64).tolist()}).encode()
    shortest = encode_predictions({"x": FLOATS}, is_row=True).replace(b"predictions", b"instances")
    pixels = json.dumps({"instances": (FLOATS * 255).astype(np.uint8).tolist()}).encode()
    return [
        *(
            Row(
                f"JSON of {len(body) / 1e6:.2f} MB to array, {kind}",
                lambda body=body, dtype=dtype: decode_rows(body, dtype),  # type: ignore[misc]  # binds this turn's
                lambda body=body, dtype=dtype: np.array(json.loads(body)["instances"], dtype),  # type: ignore[misc]
                goal_ms,
            )
            for kind, body, dtype, goal_ms in (
                ("doubles", doubles, "f4", 8.0),
                ("float32", shortest, "f4", None),
                ("pixels", pixels, "u1", None),
            )
        ),
        Row(
            "array to JSON, float32",
            lambda: encode_predictions({"y": FLOATS}, is_row=True),
            lambda: json.dumps({"predictions": FLOATS.tolist()}),
        ),
    ]


def decode(body: bytes) -> Array:
    """Decode from the wire like the gRPC front-end."""
    return decode_tensor(tensor_pb2.TensorProto.FromString(body))


def plain_decode(body: bytes) -> object:
    """Decode from the wire with TensorFlow's own function."""
    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(body))


def typed(array: Array) -> bytes:
    """Encode through the message, in the typed field."""
    proto = tensor_pb2.TensorProto(dtype=tf.as_dtype(array.dtype).as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    field = {"f": proto.float_val, "i": proto.int64_val, "O": proto.string_val}[array.dtype.kind]
    field.extend(array.reshape(-1).tolist())
    return bytes(proto.SerializeToString())


def decode_rows(body: bytes, dtype: str) -> Array:
    """Decode like the REST front-end."""
    signature = Signature(DEFAULT_SIGNATURE_NAME, {"x": TensorSpec("x", np.dtype(dtype), None)}, {})
    return decode_predict_inputs(parse_predict_body(body), signature).inputs["x"]


def _ms(act: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    act()
    return (time.perf_counter() - started_s) * 1e3
