"""Tests for the report in a real browser: phone width, colour schemes, console errors, search and print."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from tests.exporter.report_documents import published, refused
from tests.support.browser import PROGRAM, Browser, open_browser
from tests.support.optional import skip_unless
from tpuserve_exporter.reports.page import render_page

pytestmark = [
    skip_unless(PROGRAM, "no browser (Debian: chromium)"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]

# Elements that exceed the right edge, except those inside a scrollable box.
OVERFLOWING = """
[...document.querySelectorAll("main *")].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scrolls, pre"))
  .map(one => one.outerHTML.slice(0, 80))
"""
FOLDED = "document.querySelectorAll('details:not([open])').length"
UNFOLDED_ROWS = """
[...document.querySelectorAll("details[open] tbody tr")].filter(row => row.offsetHeight)
  .map(row => row.cells[0].textContent)
"""
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(published()))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("document", [published(), refused()], ids=["published", "refused"])
def test_nothing_sticks_out_and_nothing_complains(
    browser: Browser, tmp_path: Path, document: dict[str, object], width: int, scheme: Literal["light", "dark"]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_page(document))
    browser.complaints.clear()
    browser.open(path, width, scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.complaints == []


def test_colours_follow_the_scheme_and_can_be_read(browser: Browser, page: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        browser.open(page, 1200, scheme)
        back, text = (_brightness(colour) for colour in browser.evaluate(COLOURS))
        assert abs(back - text) > 150
        seen[scheme] = back
    assert seen["light"] > 200
    assert seen["dark"] < 60


def test_the_search_shows_what_it_finds_and_unfolds_it(browser: Browser, page: Path) -> None:
    browser.open(page, 1200, "light")
    assert "encoder/layer_17/self_attention/query/kernel" not in browser.evaluate(UNFOLDED_ROWS)
    browser.evaluate("(search.value = 'LAYER_17', search.dispatchEvent(new Event('input')), null)")
    assert browser.evaluate(UNFOLDED_ROWS) == ["encoder/layer_17/self_attention/query/kernel"]
    browser.evaluate("(search.value = '', search.dispatchEvent(new Event('input')), null)")
    assert "head/kernel" in browser.evaluate(UNFOLDED_ROWS)


def test_every_mark_of_the_chart_is_drawn_within_it(browser: Browser, page: Path) -> None:
    browser.open(page, 360, "light")
    inside = """[...document.querySelectorAll("circle")].map(one => {
      const mark = one.getBoundingClientRect(), chart = one.closest("svg").getBoundingClientRect();
      return mark.width > 2 && mark.left >= chart.left && mark.right <= chart.right && mark.top >= chart.top - 1 &&
        mark.bottom <= chart.bottom;
    })"""
    drawn = browser.evaluate(inside)
    assert len(drawn) == 8  # only one output: the other has no difference to draw
    assert all(drawn)


def test_it_prints_with_every_group_unfolded(browser: Browser, page: Path) -> None:
    browser.open(page, 1200, "dark")
    browser.evaluate(f"(addEventListener('beforeprint', () => {{ window.foldedInPrint = {FOLDED}; }}), null)")
    assert browser.print_page().startswith(b"%PDF")
    assert browser.evaluate(f"[foldedInPrint, {FOLDED}]") == [0, 1]


def _brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 3
