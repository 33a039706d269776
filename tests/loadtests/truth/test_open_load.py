"""Tests that open loads send their schedule, and that latencies count from the planned arrivals."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import OPEN, STALLS
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case.name)
def test_counts_and_percentiles_are_true(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["dropped"].true == 0
    assert_true([row])


@pytest.mark.parametrize("case", STALLS, ids=lambda case: case.name)
def test_latencies_of_a_frozen_server_count_from_the_planned_arrivals(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    # A quarter of the requests was due in the half second in which the server read none of them.
    reported_ms = row.close["p90"].said
    assert reported_ms is not None
    assert reported_ms > 3 * 1000 * case.script.service_s
    assert_true([row])
