"""Tests that the percentiles of closed loads are those of the server's log."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import CLOSED
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: case.name)
def test_counts_and_percentiles_are_true(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.close.keys() == {"p50", "p90", "p99"}
    assert_true([row])
