"""Tests that the pages on other languages contain the programs that the tests run."""

from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

CLIENTS = ROOT / "examples" / "clients"
SOURCES = (".mjs", ".html", ".go", ".java", ".cs", ".cpp")
PROGRAMS = sorted(path.relative_to(CLIENTS) for path in CLIENTS.rglob("*") if path.suffix in SOURCES)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_page_contains_the_program(program: Path) -> None:
    page = ROOT / "docs" / "how-to" / "call" / f"{program.parts[0]}.md"
    assert f"\n{(CLIENTS / program).read_text()}```\n" in page.read_text()


def test_every_language_has_programs() -> None:
    assert {program.parts[0] for program in PROGRAMS} == {"javascript", "go", "java", "csharp", "cpp"}
