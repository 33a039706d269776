"""Tests that TensorProto conversion raises the server's errors; tests/formats tests the codec itself."""

import numpy as np
import pytest
from tensorflow.core.framework.tensor_pb2 import TensorProto

from tpuserve_server.core.terms.errors import Internal, InvalidArgument
from tpuserve_server.core.terms.types import PredictResult, ServableId
from tpuserve_server.wire.predict_proto import encode_predict_request, encode_predict_response
from tpuserve_server.wire.tensor_proto import decode_tensor

SERVED = ServableId("m", 1)
DATES = {"y": np.zeros(1, "datetime64[s]")}


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_tensor("image", TensorProto(dtype=20))
    assert caught.value.message == "tensor parsing error: image: dtype 20 is not supported"


def test_tensor_is_decoded() -> None:
    tensor = TensorProto(dtype=1, float_val=[1.5], tensor_shape={"dim": [{"size": 2}]})
    assert decode_tensor("x", tensor).tolist() == [1.5, 1.5]


def test_dtype_without_a_wire_form_is_an_internal_error() -> None:
    with pytest.raises(Internal, match=r"dtype datetime64\[s\] is not supported by TensorProto"):
        encode_predict_response(PredictResult(SERVED, "serving_default", DATES))
    with pytest.raises(Internal, match="datetime64"):
        encode_predict_request(SERVED, "serving_default", DATES)
