"""Tests of the counts of requests without a response, of arrivals that were not sent, and of loads that end early."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import BROKEN, DROPPED, EARLY_ENDS, EJECTED
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_connections_and_missing_responses_are_failures(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["errors"].true
    assert_true([row])


@pytest.mark.parametrize("case", EJECTED, ids=lambda case: case.name)
def test_requests_after_an_ejected_connection_are_sent_and_counted_once(case: Case, tmp_path: Path) -> None:
    assert_true([measure(case, tmp_path)])


def test_dropped_arrivals_are_counted(tmp_path: Path) -> None:
    row = measure(DROPPED, tmp_path)
    assert row.counts["dropped"].true
    assert_true([row])


@pytest.mark.parametrize("case", EARLY_ENDS, ids=lambda case: case.name)
def test_a_load_that_ends_early_drops_no_arrival(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert case.planned is not None
    assert row.logged < len(case.planned)
    assert_true([row])
