"""Tests that every bad PyTorch input fails as docs/reference/export-errors.md shows and leaves no files behind."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.bad_inputs.case import Case
from tests.exporter.bad_inputs.checking import check
from tests.exporter.bad_inputs.sections import SECTIONS

CASES = [
    pytest.param(name, case, id=f"{name}: {case.title}")
    for name, section in SECTIONS.items()
    if "torch" in section.packages
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
def test_a_bad_file_is_told_as_the_page_says_and_leaves_nothing(
    make: Callable[[str], Path], tmp_path: Path, name: str, case: Case
) -> None:
    check(SECTIONS[name], case, make(name), tmp_path)
