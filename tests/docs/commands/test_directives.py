"""Installations that pages name exist, and so do the tests that run in place of a page."""

import re

import pytest

from tests.docs.commands.library import read_pages
from tests.docs.test_links import markdown_files
from tests.support.wheels import META, PACKAGES, ROOT, read_project

PAGES = read_pages()
EXTRAS = {
    project["name"]: set(project.get("optional-dependencies", {})) for project in map(read_project, (*PACKAGES, META))
}
_REQUIREMENT = re.compile(r"\b(tpuserve(?:-\w+)?)(?:\[([\w,]+)\])?(?=['\s`]|$)")
_INSTALL = re.compile(r"pip install [^`\n#]*")


def test_pages_install_distributions_and_extras_that_exist() -> None:
    found = [
        (page, requirement[1], set((requirement[2] or "").split(",")) - {""})
        for page in markdown_files()
        for command in _INSTALL.findall((ROOT / page).read_text(encoding="utf-8"))
        for requirement in _REQUIREMENT.finditer(command)
    ]
    assert len(found) > 40
    assert [one for one in found if one[1] not in EXTRAS or not one[2] <= EXTRAS[one[1]]] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_not_run_names_tests_that_exist(name: str) -> None:
    page = PAGES[name]
    reasons = [page.not_run, *(block.not_run for block in page.blocks)]
    named = [path for reason in reasons for path in re.findall(r"\b(?:tests|examples)/[\w/.]*\w", reason)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert set(page.after) <= PAGES.keys()
