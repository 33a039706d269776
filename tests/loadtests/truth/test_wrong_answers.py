"""Tests that the load tester finds every wrong response, by its form or by golden responses."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import OIP_WRONG_ANSWERS, USELESS_ANSWERS, WRONG_ANSWERS
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", [*WRONG_ANSWERS, OIP_WRONG_ANSWERS], ids=lambda case: case.name)
def test_every_wrong_response_is_found(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["wrong"].true
    assert sum(row.counts[name].true or 0 for name in ("checked", "malformed")) == row.logged
    assert_true([row])


@pytest.mark.parametrize("case", USELESS_ANSWERS, ids=lambda case: case.name)
def test_every_useless_response_fails_without_golden_responses(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["malformed"].true
    assert row.counts["errors"].true == row.counts["malformed"].true
    assert_true([row])
