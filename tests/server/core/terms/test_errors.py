"""Tests for the error tree: it matches the drawing, and each code has one class."""

import errno
import os

import grpc
import pytest

from tpuserve_server.core.terms import errors
from tpuserve_server.core.terms.errors import (
    Code,
    FailedPrecondition,
    Internal,
    ServingError,
    TooLate,
    Unavailable,
    Unknown,
    error_for_code,
    file_error,
    shown,
    shown_names,
)


def _tree(kind: type[ServingError], depth: int = 0) -> list[tuple[int, str]]:
    """Return the classes of the module in the order of their definition. Front-ends define other subclasses."""
    below = [_tree(each, depth + 1) for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [(depth, kind.__name__), *[line for branch in below for line in branch]]


def _classes(kind: type[ServingError]) -> list[type[ServingError]]:
    return [getattr(errors, name) for _, name in _tree(kind)]


def test_the_docstring_draws_the_whole_tree() -> None:
    lines = (errors.__doc__ or "").split("\n\n")[1].splitlines()
    drawn = [((len(line) - len(line.lstrip(" │├└─"))) // 4 - 1, line.lstrip(" │├└─")) for line in lines]
    assert drawn == _tree(ServingError)


def test_codes_have_grpcs_names_and_numbers() -> None:
    assert {code.name: code.value for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.OK}))
def test_every_code_has_one_class_that_stands_for_it(code: Code) -> None:
    error = error_for_code(code, "why")
    assert (error.code, error.message, type(error).__base__) == (code, "why", ServingError)


@pytest.mark.parametrize("number", [0, -1, 17, 99])
def test_a_number_that_is_no_error_is_unknown(number: int) -> None:
    error = error_for_code(number, "why")
    assert (type(error), error.message) == (Unknown, "why")


def test_a_load_is_retried_after_errors_that_may_pass() -> None:
    may_pass = [error.__name__ for error in _classes(ServingError) if error.may_pass]
    assert may_pass == [
        "Cancelled",
        "Unknown",
        "ResourceExhausted",
        "TooLarge",
        "TooLate",
        "Aborted",
        "Internal",
        "OutOfMemory",
        "Unavailable",
        "NotLoaded",
        "DeviceLost",
    ]


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (errno.EACCES, FailedPrecondition, "Permission denied"),
        (errno.EISDIR, FailedPrecondition, "Is a directory"),
        (errno.EIO, Unavailable, "Input/output error"),
        (errno.ENOSPC, Unavailable, "No space left on device"),
    ],
)
def test_an_error_of_a_file_is_permanent_if_only_the_operator_can_mend_it(
    number: int, kind: type[ServingError], reason: str
) -> None:
    error = file_error("weights cannot be read", OSError(number, os.strerror(number), "/a/path"))
    assert (type(error), error.message) == (kind, f"weights cannot be read: {reason}")


def test_a_copy_is_equal_and_has_no_traceback() -> None:
    try:
        raise Internal("no")
    except Internal as error:
        copy = error.copy()
    assert (type(copy), copy.message, copy.retry_after_s, copy.__traceback__) == (Internal, "no", None, None)


def test_too_late_says_when_to_try_again() -> None:
    error = TooLate("too late", retry_after_s=0.25)
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert error.retry_after_s == 0.25
    assert (type(error.copy()), error.copy().message, error.copy().retry_after_s) == (TooLate, "too late", 0.25)


def test_clients_texts_are_cut_before_they_are_part_of_a_message() -> None:
    assert shown("n" * 1024) == "n" * 1024
    assert shown("n" * 5000) == "n" * 256 + "… (5000 characters)"
    assert shown_names({"b", "a"}) == "a,b"
    many = shown_names([f"{number:04}" for number in range(1000)])
    assert many.endswith(",0063,… (1000 names)")
    assert Internal("m" * 65_536).message == "m" * 65_536
    message = Internal("b" * 100_000 + "e").message
    assert len(message) < 66_000
    assert (message[0], message[-1]) == ("b", "e")
