"""Tests for every code in both error tables."""

import pytest

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.protocols.status import MAX_MESSAGE_CHARACTERS, grpc_message, http_status

# Source: tensorflow_serving/model_servers/http_server.cc, ToHTTPStatusCode.
HTTP = {
    "OK": 200,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}


@pytest.mark.parametrize("code", Code)
def test_http_status_is_upstreams(code: Code) -> None:
    assert http_status(code) == HTTP[code.name]


def test_long_messages_are_cut_as_upstream_cuts_them() -> None:
    assert grpc_message("x" * MAX_MESSAGE_CHARACTERS) == "x" * 1024
    assert grpc_message("x" * 1025) == "x" * 1024 + "...TRUNCATED"
