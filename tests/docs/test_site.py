"""Tests of the documentation site that `make docs` builds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

# One build takes most of the time of these tests.
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site. Sphinx fails for a broken link, a missing page and a wrong docstring."""
    directory = tmp_path_factory.mktemp("site")
    command = ["sphinx-build", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html", "-c", "docs"]
    built = subprocess.run(
        [Path(sys.prefix, "bin", command[0]), *command[1:], ".", directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_each_document_has_a_page(site: Path) -> None:
    pages = {page.relative_to(site).with_suffix(".md") for page in (site / "docs").rglob("*.html")}
    assert {document.relative_to(ROOT) for document in (ROOT / "docs").rglob("*.md")} <= pages


def test_the_reference_is_generated_from_the_code(site: Path) -> None:
    commands = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    assert "--latency_objective_ms" in commands
    assert "--sequence-buckets" in commands
    api = (site / "docs/reference/python-api.html").read_text(encoding="utf-8")
    assert 'id="tpuserve_client.Client.predict"' in api
    assert 'id="tpuserve_exporter.export"' in api


def test_the_root_leads_to_the_documents_and_search_has_an_index(site: Path) -> None:
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")
    assert "docs/how-to/canary" in (site / "searchindex.js").read_text(encoding="utf-8")
