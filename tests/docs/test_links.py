"""Every link from one of the repository's Markdown files to another file leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT


def markdown_files() -> list[Path]:
    """The Markdown files git knows; those it ignores belong to other people's packages."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in sorted(listed.stdout.splitlines())]


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", markdown_files(), ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL)
    for target in re.findall(r"]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, fragment = target.partition("#")
        found = ROOT / path.parent / file if file else ROOT / path
        assert found.exists(), f"{path}: {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), flags=re.MULTILINE)
            assert fragment in map(anchor, headings), f"{path}: {target}"
