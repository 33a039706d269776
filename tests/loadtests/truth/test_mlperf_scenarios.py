"""Tests that the queries, samples and latencies of MLPerf's scenarios are those of the server's log."""

import pytest

from tests.loadtests.truth.commands import MLPERF, Mlperf, mlperf
from tests.loadtests.truth.tester import settle
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", MLPERF, ids=lambda case: case.scenario)
def test_the_figures_are_true(case: Mlperf) -> None:
    assert_true(settle(case.scenario, lambda: mlperf(case)))
