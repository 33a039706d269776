"""Tests that every bad PyTorch input fails as docs/reference/export-errors.md shows and leaves no files behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.bad_inputs.case import Case
from tests.exporter.bad_inputs.checking import check
from tests.exporter.bad_inputs.sections import SECTIONS, list_cases


@pytest.mark.parametrize(("name", "case"), list_cases(with_torch=True))
def test_a_bad_file_is_told_as_the_page_says_and_leaves_nothing(
    make_sources: Callable[[str], Path], tmp_path: Path, name: str, case: Case
) -> None:
    check(SECTIONS[name], case, make_sources(name), tmp_path)
