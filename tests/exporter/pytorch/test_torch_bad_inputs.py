"""Tests that every bad PyTorch input fails as docs/reference/export-errors.md shows and leaves no files behind."""

from pathlib import Path

import pytest

from tests.exporter.bad_inputs.case import Case
from tests.exporter.bad_inputs.checking import check
from tests.exporter.bad_inputs.pytorch import SECTION


@pytest.fixture(scope="module")
def sources(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    SECTION.make(folder)
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.title) for case in SECTION.cases])
def test_a_bad_file_is_told_as_the_page_says_and_leaves_nothing(sources: Path, tmp_path: Path, case: Case) -> None:
    check(SECTION, case, sources, tmp_path)
