"""Tests of the documentation site that `make docs` builds."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

from tests.deploy.dockerfile import ROOT
from tests.docs.built_site import find_faults
from tests.support.browser import PROGRAM
from tests.support.web_driver import DRIVER, WebDriver, drive_browser

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


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def origin(site: Path) -> Iterator[str]:
    """Serve the site as a host of static files does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=site)) as server:
        serving = threading.Thread(target=server.serve_forever, name="site")
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    if PROGRAM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver")
    with drive_browser(tmp_path_factory.mktemp("profile")) as driven:
        yield driven


def test_every_address_leads_to_a_file_or_an_anchor_of_the_site(site: Path) -> None:
    assert find_faults(site) == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<img src="missing.png">', "no such file"),
        ('<picture><source srcset="here.html, missing.png 2x"></picture>', "no such file"),
        ('<a href="here.html#missing">', "no such anchor"),
        ('<a href="/here.html">', "leads out of the site"),
        ('<script src="https://cdn.example/mermaid.js"></script>', "loads from another host"),
        ('<script type="module">import mermaid from "https://cdn.example/mermaid.mjs"</script>', "another host"),
        ('<link rel="stylesheet" href="//fonts.example/sans.css">', "loads from another host"),
        ("<style>@font-face { src: url(https://fonts.example/sans.woff2) }</style>", "loads from another host"),
    ],
)
def test_a_wrong_address_is_found(tmp_path: Path, html: str, fault: str) -> None:
    page = tmp_path / "here.html"
    page.write_text(f'<h1 id="top"></h1><a href="#top"></a><a href="https://example.com"></a>{html}')
    assert [found.endswith(fault) for found in find_faults(tmp_path)] == [True]


def test_pictures_have_versions_for_both_themes(site: Path) -> None:
    page = (site / "docs/index.html").read_text(encoding="utf-8")
    assert 'class="only-light" src="../_images/console-overview-light.png"' in page
    assert 'class="only-dark" src="../_images/console-overview-dark.png"' in page


@pytest.mark.parametrize("page", ["docs/index", "docs/explanation/architecture", "docs/how-to/operate/run"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_completely_from_the_site_and_fit_a_phone(
    origin: str, browser: WebDriver, page: str, scheme: Literal["light", "dark"]
) -> None:
    browser.resize(390, scheme)
    browser.open(f"{origin}/{page}.html")
    assert browser.find_outside(origin) == []
    assert browser.find_complaints() == []
    assert browser.evaluate("return document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("install", "docs/how-to/install"),
        ("docker", "docs/how-to/deploy/compose"),
        ("batching", "docs/how-to/serve/batching"),
        ("keras", "docs/tutorials/keras"),
        ("pytorch", "docs/how-to/export/pytorch"),
        ("jax", "docs/tutorials/jax"),
        ("locust", "docs/how-to/load-test/locust"),
        ("metrics", "docs/reference/metrics"),
        ("tls", "docs/how-to/call/command"),
        ("memory", "docs/how-to/serve/devices"),
    ],
)
def test_likely_searches_find_their_page_first(origin: str, browser: WebDriver, query: str, first: str) -> None:
    browser.open(f"{origin}/search.html?q={query}")
    found = browser.wait_for("document.querySelector('#search-results li > a')?.getAttribute('href')")
    assert found.split(".html")[0] == first


def test_the_page_for_unknown_addresses_links_to_the_root_from_any_depth(origin: str, browser: WebDriver) -> None:
    browser.open(f"{origin}/404.html")
    addresses = browser.evaluate(
        "history.replaceState(null, '', '/docs/how-to/missing.html'); place();"
        "return [...document.links].map(link => link.href)"
    )
    assert addresses == [f"{origin}/{path}.html" for path in ("docs/index", "docs/how-to/index", "search")]


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
