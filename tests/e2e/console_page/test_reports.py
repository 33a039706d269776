"""Tests for the reports of a version in a real browser: real pages render from the server as from a file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.e2e.running_server import RunningServer
from tests.exporter.report_documents import published
from tests.support.optional import needs
from tests.support.web_driver import WebDriver
from tpuserve_exporter.reports.page import render_page
from tpuserve_formats.version_reports import REPORTS_FOLDER

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow, pytest.mark.xdist_group("console page")]

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# All that a user sees: words, and the place, size and colors of each element and of each part of a chart.
SEEN = """
const elements = [...document.querySelectorAll("body, body *")].map(one => {
  const {x, y, width, height} = one.getBoundingClientRect(), style = getComputedStyle(one);
  return [one.tagName, x, y, width, height, style.color, style.backgroundColor, style.stroke, style.fill].join(" ");
});
return {words: document.body.innerText, color: getComputedStyle(document.body).color, elements};
"""
# Chart scripts answer the pointer with a tooltip.
POINT = """
const column = document.querySelector(".drawing .column");
column.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
return column.closest(".drawing").querySelector(".tooltip-text").textContent;
"""
CHARTS = "return document.querySelectorAll('svg path, svg circle').length"
LINKS = "return [...document.querySelectorAll('#version-digits-1 dd a')].map(one => [one.textContent, one.href])"


@pytest.fixture(scope="module")
def reports(models: Path, site: RunningServer) -> Iterator[dict[str, Path]]:
    """Attach the page of a load test to version 1 of digits, and yield the reports by title, the newest first.

    The third one is the page of a larger export, with charts and pictures.
    """
    version = models / "digits/1"
    command = [
        str(Path(sys.executable).with_name("tpuserve-loadtest")), "run", "digits", "--grpc", site.grpc, "--rest",
        site.rest, "--users", "2", "--duration", "1", "--warm-up", "100ms", "--generator-limit", "note",
        "--attach-to", str(version),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    (page,) = (version / REPORTS_FOLDER).glob("loadtest-*.html")
    larger = version / REPORTS_FOLDER / "larger.html"
    document = published()
    document["manifest"]["created_at"] = "2020-01-01T00:00:00Z"
    larger.write_text(render_page(document))
    export = version / REPORTS_FOLDER / "export.html"
    yield {"Load test of digits": page, "Export of digits": export, f"Export of {document['name']}": larger}
    page.unlink()
    larger.unlink()


def see(browser: WebDriver, url: str, scheme: Literal["light", "dark"]) -> dict[str, Any]:
    browser.resize(1100, scheme)
    browser.open(url)
    seen: dict[str, Any] = browser.evaluate(SEEN)
    assert browser.find_complaints() == []
    return seen


@pytest.mark.parametrize("number", range(3))
def test_report_looks_from_the_server_as_from_a_file(
    browser: WebDriver, site: RunningServer, reports: dict[str, Path], number: int
) -> None:
    path = list(reports.values())[number]
    colors = set()
    for scheme in SCHEMES:
        served = see(browser, f"{site.rest}/console/reports/digits/1/{path.name}", scheme)
        assert served == see(browser, path.as_uri(), scheme)
        # The export of digits has no chart on a CPU where the version's outputs equal the source's.
        assert browser.evaluate(CHARTS) or path.name == "export.html"
        colors.add(served["color"])
    assert len(colors) == 2


def test_scripts_of_a_report_run_without_the_servers_origin(
    browser: WebDriver, site: RunningServer, reports: dict[str, Path]
) -> None:
    browser.open(f"{site.rest}/console/reports/digits/1/{reports['Load test of digits'].name}")
    assert browser.evaluate(POINT)
    assert browser.evaluate("return origin") == "null"
    assert browser.find_complaints() == []


def test_console_links_the_reports_with_their_titles_the_newest_first(
    page: WebDriver, reports: dict[str, Path]
) -> None:
    page.click("#live-rows a")
    page.wait_for_text("#version-digits-1", "Export of digits")
    links = page.evaluate(LINKS)
    assert [title for title, _ in links] == list(reports)
    assert [href.rpartition("/")[2] for _, href in links] == [path.name for path in reports.values()]
    for title, href in links:
        page.open(href)
        assert page.evaluate("return document.title") == title
        assert page.text("h1")
