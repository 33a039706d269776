"""Tests for `--price-per-hour`."""

import pytest

from tests.loadtests.doubling_server import MODEL
from tests.support import forked_command


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("run", MODEL, "--price-per-hour", "nan"), "'nan' is not a price per hour"),
        (("mlperf", MODEL, "--scenario", "offline", "--price-per-hour", "-1"), "'-1' is not a price per hour"),
        (
            ("compare", MODEL, "1", "2", "--price-per-hour", "1,2,3"),
            "'1,2,3' has 3 prices. Set at most two, for A and B.",
        ),
        (("compare", MODEL, "1", "2", "--price-per-hour", "1,2 EUR"), "'1,2 EUR' has two currencies"),
        (("compare", MODEL, "1", "2", "--price-per-hour", "1,"), "'' is not a price per hour"),
    ],
)
def test_an_invalid_price_is_a_usage_error_before_any_load(arguments: tuple[str, ...], problem: str) -> None:
    ended = forked_command.run("tpuserve-loadtest", *arguments)
    assert ended.returncode == 2
    assert f"Invalid value for '--price-per-hour': {problem}" in ended.stderr
