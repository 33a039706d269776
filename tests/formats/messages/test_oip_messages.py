"""Tests for the messages of the Open Inference Protocol."""

import pytest
from google.protobuf import descriptor_pool

from tpuserve_formats.messages import oip


def test_the_service_has_the_methods_of_triton() -> None:
    assert oip.GRPC_INFERENCE_SERVICE.full_name == "inference.GRPCInferenceService"
    assert {"ModelInfer", "ModelStreamInfer", "RepositoryIndex"} <= {*oip.GRPC_INFERENCE_SERVICE.methods_by_name}


def test_messages_leave_the_names_free_in_the_default_pool() -> None:
    assert oip.ModelInferRequest(id="1").SerializeToString()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="NoSuchMessage"):
        _ = oip.NoSuchMessage  # type: ignore[attr-defined]  # the subject of the test
