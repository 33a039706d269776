"""TensorProto, as requests and responses hold it. The second opinion is TensorFlow's C++ (Tensor::FromProto)."""

from functools import lru_cache

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tests.fuzz.arrays import expect_same
from tests.fuzz.target import Target, expect
from tpuserve_formats.dtypes import BY_DTYPE, STRING, Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import TensorProto
from tpuserve_formats.tensor_proto import RepeatBudget, decode_tensor, encode_tensor

# Memory of repeated values, so that an input cannot fill the machine's.
_BUDGET_BYTES = 1 << 20


def run(data: bytes) -> bool:
    """Decode strictly and leniently, compare with TensorFlow, and encode again in both forms."""
    try:
        proto = TensorProto.FromString(data)
    except DecodeError:
        return False
    strict, lenient = _decode(proto, lenient=False), _decode(proto, lenient=True)
    if strict is None:
        return False
    expect(lenient is not None, "the lenient decoder refuses what the strict one accepts")
    assert lenient is not None
    expect_same("lenient", lenient, strict)
    for as_content in (False, True):
        again = decode_tensor(TensorProto.FromString(encode_tensor(strict, as_content=as_content)))
        expect_same("encoded again", again, strict)
    _compare_with_tensorflow(proto, strict)
    return True


def _decode(proto: TensorProto, *, lenient: bool) -> Array | None:
    try:
        return decode_tensor(proto, RepeatBudget(_BUDGET_BYTES), lenient=lenient)
    except FormatError:
        return None


def _compare_with_tensorflow(proto: TensorProto, ours: Array) -> None:
    if not _is_known_to_tensorflow(proto, ours):
        return
    try:
        theirs = tf.io.parse_tensor(proto.SerializeToString(), tf.dtypes.as_dtype(proto.dtype)).numpy()
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        expect(False, f"TensorFlow refuses it: {error.message}")
    wanted = np.array(theirs, STRING) if ours.dtype == STRING else np.asarray(theirs)
    expect_same("TensorFlow", ours, wanted.reshape(ours.shape) if not wanted.shape else wanted)


def _is_known_to_tensorflow(proto: TensorProto, ours: Array) -> bool:
    # TensorFlow has another limit on dimensions and elements.
    return ours.ndim <= 8 and _has_kernel(BY_DTYPE[ours.dtype].number)


@lru_cache
def _has_kernel(number: int) -> bool:
    try:
        dtype = tf.dtypes.as_dtype(number)
        tf.io.parse_tensor(tf.io.serialize_tensor(tf.zeros((), dtype)), dtype)
    except (TypeError, tf.errors.OpError):
        return False
    return True


TARGET = Target(run)
