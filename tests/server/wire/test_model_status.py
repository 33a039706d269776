"""Tests for GetModelStatus as messages and as JSON."""

import pytest
from tensorflow_serving.apis.get_model_status_pb2 import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelVersionStatus,
)

from tpuserve_server.core.terms.errors import Code, InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State, VersionStatus
from tpuserve_server.wire.model_status import decode_status_request, encode_status_response, status_to_json

STATUSES = [
    VersionStatus(ServableId("m", 2), State.END, "no such file", int(Code.NOT_FOUND)),
    VersionStatus(ServableId("m", 1), State.AVAILABLE, notes=("device: cpu",)),
]


def test_response_keeps_order_state_and_error() -> None:
    response = GetModelStatusResponse.FromString(encode_status_response(STATUSES))
    assert [
        (status.version, status.state, status.status.error_code, status.status.error_message)
        for status in response.model_version_status
    ] == [(2, ModelVersionStatus.END, 5, "no such file"), (1, ModelVersionStatus.AVAILABLE, 0, "")]


def test_json_is_upstreams() -> None:
    # Source: http_rest_api_handler_test.cc, GetStatus
    assert status_to_json(STATUSES) == {
        "model_version_status": [
            {
                "version": "2",
                "state": "END",
                "status": {"error_code": "NOT_FOUND", "error_message": "no such file"},
            },
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }


@pytest.mark.parametrize("state", State)
def test_states_are_the_messages(state: State) -> None:
    assert ModelVersionStatus.State.Name(int(state)) == state.name


def test_request_is_decoded_even_without_a_name() -> None:
    request = GetModelStatusRequest(model_spec={"version_label": "l"})
    assert decode_status_request(request.SerializeToString()) == ModelSpec("", version_label="l")


@pytest.mark.parametrize(
    ("body", "message"), [(b"\xff", "Malformed GetModelStatusRequest"), (b"", "Missing ModelSpec")]
)
def test_bad_requests_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_status_request(body)
    assert caught.value.message == message


def test_what_a_version_waits_for_goes_where_clients_look_for_errors() -> None:
    waiting = VersionStatus(ServableId("m", 3), State.START, waits="not complete yet: saved_model.pb is missing")
    [status] = GetModelStatusResponse.FromString(encode_status_response([waiting])).model_version_status
    assert (status.state, status.status.error_code) == (ModelVersionStatus.START, 0)
    assert status.status.error_message == "not complete yet: saved_model.pb is missing"
