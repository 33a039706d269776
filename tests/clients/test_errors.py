"""Tests for the error tree and its two tables."""

import grpc
import pytest

from tpuserve_client import errors
from tpuserve_client.errors import Code, TpuserveError, from_code, from_http


def test_every_code_but_ok_has_exactly_one_error() -> None:
    classes = TpuserveError.__subclasses__()
    assert sorted(error.code for error in classes) == sorted(set(Code) - {Code.OK})


def test_codes_have_grpcs_names_and_numbers() -> None:
    assert {code.name: code.value for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = {line.rpartition("─ ")[2] for line in (errors.__doc__ or "").splitlines() if "── " in line}
    assert drawn == {error.__name__ for error in TpuserveError.__subclasses__()}


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.OK}))
def test_every_grpc_code_becomes_its_error(code: Code) -> None:
    error = from_code(code, "why")
    assert error.code == code
    assert (error.message, str(error)) == ("why", "why")


def test_code_without_a_name_is_unknown() -> None:
    assert from_code(99, "why").code == Code.UNKNOWN


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.INVALID_ARGUMENT),
        (401, Code.UNAUTHENTICATED),
        (403, Code.PERMISSION_DENIED),
        (404, Code.NOT_FOUND),
        (408, Code.DEADLINE_EXCEEDED),
        (409, Code.ABORTED),
        (412, Code.FAILED_PRECONDITION),
        (413, Code.RESOURCE_EXHAUSTED),
        (429, Code.RESOURCE_EXHAUSTED),
        (499, Code.CANCELLED),
        (500, Code.INTERNAL),
        (501, Code.UNIMPLEMENTED),
        (502, Code.UNAVAILABLE),
        (503, Code.UNAVAILABLE),
        (504, Code.DEADLINE_EXCEEDED),
    ],
)
def test_http_status_becomes_an_error(status: int, code: Code) -> None:
    error = from_http(status, "why", retry_after_s=2.0)
    assert (error.code, error.message, error.retry_after_s) == (code, "why", 2.0)


def test_every_public_error_is_exported() -> None:
    import tpuserve_client

    assert {error.__name__ for error in TpuserveError.__subclasses__()} <= set(tpuserve_client.__all__)
