"""Tests that every link from a Markdown file of the repository to another file has a target."""

import re
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

# An explicit list: installed or downloaded files in other directories (.venv, .demo) are not ours.
FOLDERS = ("benchmarks", "clients", "deploy", "docs", "examples", "exporter", "formats", "loadtests", "server", "tests")
BUILT = ("build", "dist", "node_modules")


def markdown_files() -> list[Path]:
    """Return the repository's Markdown files, relative to its root.

    It needs no git, so it works in a source archive.
    """
    found = list(ROOT.glob("*.md")) + [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return sorted(path for path in (item.relative_to(ROOT) for item in found) if not _is_foreign(path))


def _is_foreign(path: Path) -> bool:
    return any(part.startswith(".") or part in BUILT or part.endswith(".egg-info") for part in path.parts)


def anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", markdown_files(), ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, fragment = target.partition("#")
        found = ROOT / path.parent / file if file else ROOT / path
        assert found.exists(), f"{path}: {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert fragment in map(anchor, headings), f"{path}: {target}"


def test_files_are_found_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = set(map(str, markdown_files()))
    assert {"README.md", "docs/how-to/call/python.md", "clients/python/README.md"} <= found
    assert not any(path.startswith(".") for path in found)


def test_every_folder_with_documents_is_looked_into() -> None:
    tops = [top for top in ROOT.iterdir() if top.is_dir() and top.name not in BUILT and not top.name.startswith(".")]
    assert {top.name for top in tops if any(top.rglob("*.md"))} <= set(FOLDERS)
