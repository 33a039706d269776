"""Tests that the load tester's counts equal those of the server's log: requests and refusals."""

from pathlib import Path

import pytest

from tests.loadtests.truth.cases import OIP, REFUSALS
from tests.loadtests.truth.tester import Case, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refusals_are_counted_by_kind_and_protocol(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert {"sent", "errors", "grpc sent", "rest errors", "unavailable", "internal", "exhausted"} <= row.counts.keys()
    assert row.counts["errors"].true
    assert_true([row])


def test_refusals_of_the_open_inference_protocol_are_counted(tmp_path: Path) -> None:
    row = measure(OIP, tmp_path)
    assert {"oip_grpc sent", "oip_http errors", "unavailable", "internal", "exhausted"} <= row.counts.keys()
    assert row.counts["oip_http sent"].true
    assert_true([row])
