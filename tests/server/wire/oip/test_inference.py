"""Tests for the value types of a request: the version that it names, and its parameters."""

from itertools import permutations

import pytest

from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.wire.oip.inference import (
    NO_PARAMETERS,
    InferenceRequest,
    InputTensor,
    parse_model_spec,
    read_parameters,
)


@pytest.mark.parametrize(("text", "version"), [("", None), ("7", 7), ("007", 7), (str(2**63 - 1), 2**63 - 1)])
def test_a_version_is_a_number_and_empty_is_the_latest(text: str, version: int | None) -> None:
    assert parse_model_spec("m", text, "s") == ModelSpec("m", version, None, "s")


@pytest.mark.parametrize("text", ["x", "-1", "1.0", " 1", "٣", str(2**63), "9" * 5000])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_model_spec("m", text)
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text[:32]}', version should be an integral "
        "value > 0"
    )


@pytest.mark.parametrize(
    ("number", "priority"), [(0, None), (1, Priority.HIGH), (2, Priority.LOW), (2**64 - 1, Priority.LOW)]
)
def test_one_is_the_highest_priority_and_zero_the_default(number: int, priority: Priority | None) -> None:
    assert read_parameters({"priority": number}).priority is priority


def test_a_timeout_is_in_microseconds_and_zero_is_none() -> None:
    assert read_parameters({"timeout": 1500}).timeout_s == 0.0015
    assert read_parameters({"timeout": 0}).timeout_s is None


def test_unknown_parameters_and_absent_sequences_are_ignored() -> None:
    values = {"custom": {"a": [1]}, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert read_parameters(values | {"triton_enable_empty_final_response": True}) == NO_PARAMETERS


@pytest.mark.parametrize(("name", "value"), [("sequence_id", 3), ("sequence_id", "a"), ("sequence_start", True)])
def test_sequences_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"parameter '{name}' is not supported: models of this server keep no"):
        read_parameters({name: value})


@pytest.mark.parametrize("order", [*permutations(("sequence_id", "sequence_start", "sequence_end", "triton_x"))])
def test_the_error_names_the_id_of_a_sequence_first(order: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="parameter 'sequence_id' is not supported"):
        read_parameters(dict.fromkeys(order, 1))


def test_reserved_names_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="parameter keys starting with 'triton_' are reserved for Triton usage"):
        read_parameters({"triton_x": 1})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (InferenceRequest(inputs=[InputTensor("x", "FP32", [1], b"1234")]), True),
        (InferenceRequest(inputs=[InputTensor("x", "FP32", [1], memoryview(b"1234"))]), True),
        (InferenceRequest(inputs=[InputTensor("x", "BOOL", [4], b"1234")]), False),
        (InferenceRequest(inputs=[InputTensor("x", "BYTES", [1], b"1234")]), False),
        (InferenceRequest(inputs=[InputTensor("x", "FP32", [1], ModelInferRequest().inputs.add().contents)]), False),
        (InferenceRequest(raw_input=b"1234"), False),
    ],
)
def test_only_raw_numbers_need_no_look_at_their_values(request_: InferenceRequest, expected: bool) -> None:
    assert request_.is_plain is expected
