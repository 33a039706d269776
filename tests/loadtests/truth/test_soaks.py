"""Tests that soaks find leaks, and only leaks."""

import pytest

from tests.loadtests.truth.commands import SOAKS, Soak, soak
from tests.loadtests.truth.tester import settle
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", SOAKS, ids=lambda case: case.behaviour)
def test_the_verdict_is_that_of_the_script(case: Soak) -> None:
    assert_true(settle(case.behaviour, lambda: soak(case)))
