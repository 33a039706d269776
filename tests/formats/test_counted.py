"""Tests for numbers with their nouns."""

import pytest

from tpuserve_formats import counted as formats
from tpuserve_server.core.terms import errors as core


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (-1, "-1 runs")])
def test_only_one_is_singular(number: int, text: str) -> None:
    assert formats.counted(number, "run") == core.counted(number, "run") == text


def test_thousands_have_commas_outside_the_server() -> None:
    assert formats.counted(12_345, "request") == "12,345 requests"
    assert core.counted(12_345, "request") == "12345 requests"
