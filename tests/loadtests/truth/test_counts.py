"""Tests that the load tester's counts equal those of the server's log: requests, refusals and wrong responses."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import REFUSALS, WRONG_ANSWERS
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refusals_are_counted_by_kind_and_protocol(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert {"sent", "errors", "grpc sent", "rest errors", "unavailable", "internal", "exhausted"} <= row.counts.keys()
    assert row.counts["errors"].true
    assert_true([row])


@pytest.mark.parametrize("case", WRONG_ANSWERS, ids=lambda case: case.name)
def test_every_wrong_response_is_found(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["wrong"].true
    assert row.counts["checked"].true == row.logged
    assert_true([row])
