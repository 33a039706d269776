"""Tests of the table of installations in docs/how-to/install.md: its rows, and the command that writes it."""

import re

from tests.installs.catalogue import INSTALLATIONS
from tests.installs.table import PAGE, cells, write_table, written_table
from tests.support.wheels import META, PACKAGES, read_project

_FIGURES = re.compile(r"\| \+?[\d,]+ \| [\d,]+ \|$")


def test_every_distribution_and_extra_is_in_the_catalogue() -> None:
    projects = [read_project(project) for project in (META, *PACKAGES)]
    expected = {project["name"] for project in projects}
    # An extra of the meta distribution adds what those of the others add.
    for project in projects[1:]:
        expected |= {f"{project['name']}[{extra}]" for extra in project.get("optional-dependencies", {})}
    assert {installation.requirement for installation in INSTALLATIONS} == expected


def test_the_page_has_the_figures_of_every_installation() -> None:
    _, _, *rows = written_table(PAGE.read_text(encoding="utf-8")).splitlines()
    assert [_FIGURES.sub("", row) for row in rows] == [cells(installation) for installation in INSTALLATIONS]


def test_a_new_table_replaces_the_old_one_and_nothing_else() -> None:
    page = PAGE.read_text(encoding="utf-8")
    changed = write_table(page, ["| `x` | y | 1 | 2 |\n"])
    assert written_table(changed).endswith("| `x` | y | 1 | 2 |\n")
    assert changed.replace(written_table(changed), "") == page.replace(written_table(page), "")
