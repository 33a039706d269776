"""Tests that every bad source or command fails as docs/reference/export-errors.md shows."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.bad_inputs.case import Case
from tests.exporter.bad_inputs.checking import check
from tests.exporter.bad_inputs.page import PAGE, read_sections
from tests.exporter.bad_inputs.sections import SECTIONS

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

# The cases of PyTorch run in PyTorch's environment (tests/exporter/pytorch).
CASES = [
    pytest.param(name, case, id=f"{name}: {case.title}")
    for name, section in SECTIONS.items()
    if "torch" not in section.packages
    for case in section.cases
]


@pytest.fixture(scope="module")
def make(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the sources of a section once."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("sources")
        SECTIONS[name].make(folder)
        return folder

    return made


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_bad_input_is_told_as_the_page_says_and_leaves_nothing(
    make: Callable[[str], Path], tmp_path: Path, name: str, case: Case
) -> None:
    check(SECTIONS[name], case, make(name), tmp_path)


def test_the_page_has_these_cases_and_no_others() -> None:
    headings = [line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert headings == [case.title for section in SECTIONS.values() for case in section.cases]
    assert list(read_sections()) == [section.title for section in SECTIONS.values()]
