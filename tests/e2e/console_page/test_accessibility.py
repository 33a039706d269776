"""Tests for the console's accessibility in a real browser: axe, the keyboard, a phone, and both color schemes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.console_page.pixel_values import select_pixel_values
from tests.support.optional import needs
from tests.support.web_driver import WebDriver

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow, pytest.mark.xdist_group("console page")]

LOOKS = [(1100, "light"), (1100, "dark"), (390, "light"), (390, "dark")]


def states(page: WebDriver, picture: Path) -> Iterator[str]:
    """Bring the page into each of its main states, and yield the name of the state."""
    page.wait_for_text("#slow-rows", "digits")
    yield "overview"
    page.evaluate("document.querySelectorAll('details.version').forEach(one => one.open = true)")
    page.evaluate("document.querySelector('#slow-rows button').click()")
    yield "details"
    select_pixel_values(page, "0..1")
    page.choose_file("#input-image", picture)
    page.wait_for("document.getElementById('panel-curl')")
    page.click("#try-form .primary")
    page.wait_for_text("#try-answer", "Top 5")
    yield "response"
    page.evaluate("fetch('v1/models/digits:predict', {method: 'POST', body: '{}'})")
    page.click("#unload-prices")
    yield "dialog"
    page.press(Keys.ESCAPE)
    page.evaluate("document.getElementById('connection').textContent = 'No connection to the server since 03:00:00'")
    yield "no connection"


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_no_state_has_a_violation_or_exceeds_the_screen(
    page: WebDriver, picture: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    page.resize(width, scheme)
    page.evaluate("fetch('v1/models/digits:predict', {method: 'POST', body: '{}'})")
    for state in states(page, picture):
        assert page.find_violations() == [], state
        assert page.find_overflowing() == [], state


def test_colors_follow_the_scheme(page: WebDriver) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page.resize(1100, scheme)
        seen.add(page.evaluate("return getComputedStyle(document.body).backgroundColor"))
    assert seen == {"rgb(246, 247, 249)", "rgb(16, 21, 28)"}


def test_keyboard_reaches_everything_in_order(page: WebDriver) -> None:
    page.press(Keys.TAB)
    assert page.evaluate("return document.activeElement.textContent") == "Skip to the status"
    page.press(Keys.ENTER)
    assert page.evaluate("return document.activeElement.id") == "main"
    reached = []
    for _ in range(60):
        page.press(Keys.TAB)
        reached.append(page.evaluate("const one = document.activeElement; return one.id || one.textContent.trim()"))
        if reached[-1] == "input-image":
            break
    in_order = ["digits version 1", "chart-version", "load-digits", "unload-digits", "try-version", "input-image"]
    assert [one for one in reached if one in in_order] == in_order
    # The focused element is outlined.
    assert page.evaluate("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_live_regions_are_quiet_while_nothing_changes(page: WebDriver) -> None:
    page.evaluate("""
      window.announced = [];
      for (const region of document.querySelectorAll('[role=status]')) {
        new MutationObserver(() => announced.push(region.textContent))
          .observe(region, {childList: true, subtree: true, characterData: true});
      }
    """)
    before = page.text("#server-line")
    # The line above them changes with every snapshot.
    page.wait_for("document.getElementById('server-line').innerText !== arguments[0]", before)
    assert page.evaluate("return announced") == []
