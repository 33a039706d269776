"""Tests that every bad source or command fails as docs/reference/export-errors.md shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.bad_inputs.case import Case
from tests.exporter.bad_inputs.checking import check
from tests.exporter.bad_inputs.page import PAGE, read_sections
from tests.exporter.bad_inputs.sections import SECTIONS, list_cases

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]


# Those of PyTorch run in PyTorch's environment (tests/exporter/pytorch).
@pytest.mark.parametrize(("name", "case"), list_cases(with_torch=False))
def test_a_bad_input_is_told_as_the_page_says_and_leaves_nothing(
    make_sources: Callable[[str], Path], tmp_path: Path, name: str, case: Case
) -> None:
    check(SECTIONS[name], case, make_sources(name), tmp_path)


def test_the_page_has_these_cases_and_no_others() -> None:
    headings = [line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert headings == [case.title for section in SECTIONS.values() for case in section.cases]
    assert list(read_sections()) == [section.title for section in SECTIONS.values()]
