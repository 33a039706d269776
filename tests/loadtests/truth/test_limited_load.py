"""Tests that loads with a number of requests send exactly these, and that pauses of users do not count."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import LIMITED
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", LIMITED, ids=lambda case: case.name)
def test_counts_and_percentiles_are_true(case: Case, tmp_path: Path) -> None:
    assert_true([measure(case, tmp_path)])
