"""The table of types against TensorFlow's own."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DataType

from tpuserve_formats.dtypes import BY_DTYPE, BY_NUMBER, WireType, type_name


@pytest.mark.parametrize("wire_type", BY_NUMBER.values(), ids=lambda wire_type: wire_type.name)
def test_number_name_dtype_and_field_are_tensorflows(wire_type: WireType) -> None:
    theirs = tf.as_dtype(wire_type.number)
    assert theirs.name in (wire_type.name, str(wire_type.dtype), "string")
    assert np.dtype(theirs.as_numpy_dtype) == wire_type.dtype
    assert wire_type.field in TensorProto.DESCRIPTOR.fields_by_name
    assert BY_DTYPE[wire_type.dtype] is wire_type


def test_every_type_of_tensorflow_that_numpy_has_is_there() -> None:
    left_out = {DataType.Name(number) for number in DataType.values() if 0 < number < 100} - {
        DataType.Name(number) for number in BY_NUMBER
    }
    # No values a client could send, or quantised and sub-byte types that no signature exposes.
    assert {name for name in left_out if not name.startswith(("DT_Q", "DT_INT", "DT_UINT", "DT_FLOAT4"))} == {
        "DT_RESOURCE",
        "DT_VARIANT",
    }


def test_names_are_tensorflows_and_numpys_for_others() -> None:
    assert type_name(np.dtype(np.float16)) == "half"
    assert type_name(np.dtype(ml_dtypes.bfloat16)) == "bfloat16"
    assert type_name(np.dtype("datetime64[s]")) == "datetime64[s]"
