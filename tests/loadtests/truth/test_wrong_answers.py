"""Tests that the comparison with golden responses finds every wrong response."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import OIP_WRONG_ANSWERS, WRONG_ANSWERS
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", [*WRONG_ANSWERS, OIP_WRONG_ANSWERS], ids=lambda case: case.name)
def test_every_wrong_response_is_found(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["wrong"].true
    assert row.counts["checked"].true == row.logged
    assert_true([row])
