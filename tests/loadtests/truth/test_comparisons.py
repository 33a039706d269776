"""Tests that compare finds the difference between two scripts, and none between equal ones."""

from pathlib import Path

import pytest

from tests.loadtests.truth.commands import COMPARISONS, Comparison, compare
from tests.loadtests.truth.tester import settle
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", COMPARISONS, ids=lambda case: case.behaviour)
def test_the_verdict_is_that_of_the_scripts(case: Comparison, tmp_path: Path) -> None:
    assert_true(settle(case.behaviour, lambda: compare(case, tmp_path)))
