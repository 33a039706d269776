"""Tests for the pages in a real browser: phone width, both colour schemes, and tooltips."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.report_pages import PAGES
from tests.support import forked_command
from tests.support.browser import PROGRAM, Browser, open_browser
from tests.support.optional import skip_unless

pytestmark = [
    skip_unless(PROGRAM, "no browser (Debian: chromium)"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]

# Elements that exceed the right edge, except those inside a scrollable box.
OVERFLOWING = """
[...document.querySelectorAll("main *")].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scrolls"))
  .map(one => one.outerHTML.slice(0, 80))
"""
# Words of a chart that exceed its edge or overlap.
CLIPPED = """
[...document.querySelectorAll(".drawing text")].filter(one => {
  const word = one.getBoundingClientRect(), chart = one.closest("svg").getBoundingClientRect();
  return word.left < chart.left - 1 || word.right > chart.right + 1 || word.top < chart.top - 1 ||
    word.bottom > chart.bottom + 1;
}).map(one => one.textContent)
"""
OVERLAPPING = """
[...document.querySelectorAll(".drawing svg")].flatMap(chart => {
  const words = [...chart.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  return words.flatMap(([text, box], number) =>
    words.slice(number + 1).filter(([, other]) => over(box, other)).map(([other]) => `${text} / ${other}`));
})
"""
# The lowest contrast of a text with its background, by WCAG's formula, with that text. Curves are compared
# with their card.
CONTRAST = """
(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [red, green, blue] = parse(colour).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (parse(colour)[3] !== 0) return colour;
    }
  };
  const holding = [...document.querySelectorAll("main *")].filter(one =>
    [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()) && one.checkVisibility());
  const texts = holding.map(one => {
    const style = getComputedStyle(one);
    return [ratio(one.closest("svg") ? style.fill : style.color, behind(one)), one.textContent.slice(0, 40)];
  });
  const lines = [...document.querySelectorAll(".drawing .curve, .drawing circle, .drawing .rule:not(text)")]
    .map(one => [ratio(getComputedStyle(one).stroke, behind(one)), one.getAttribute("class")]);
  const least = found => found.sort((a, b) => a[0] - b[0])[0] ?? [21, ""];
  return [least(texts), least(lines)];
})()
"""
# Whether an outline marks each focusable element.
FOCUSED = """
[...document.querySelectorAll("main a[href], main summary")].map(one => {
  one.focus({focusVisible: true});
  return document.activeElement === one && getComputedStyle(one).outlineStyle === "solid";
})
"""
POINT_AT = """
(number => {
  const columns = [...document.querySelectorAll(".drawing")][number].querySelectorAll(".column");
  const column = columns[Math.floor(columns.length / 2)];
  column.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
  const box = column.closest(".drawing").querySelector(".tooltip-text"), edges = box.getBoundingClientRect();
  return [box.hidden, box.textContent, edges.left >= 0 && edges.right <= innerWidth];
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, render in PAGES.items():
        (folder / f"{name}.html").write_text(render())
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_is_cut_off_or_lies_over_another(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.complaints.clear()
    browser.open(pages[name], width, "light")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate(CLIPPED) == []
    assert browser.evaluate(OVERLAPPING) == []
    assert browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_words_and_curves_stand_out(
    browser: Browser, pages: dict[str, Path], name: str, scheme: Literal["light", "dark"]
) -> None:
    browser.open(pages[name], 1200, scheme)
    (words, text), (curves, kind) = browser.evaluate(CONTRAST)
    assert words >= 4.5, text
    assert curves >= 3, kind


def test_a_script_in_a_models_name_does_not_run(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"], 1200, "light")
    assert browser.evaluate("document.title") != "taken"


@pytest.mark.parametrize("width", [390, 1200])
def test_a_chart_tells_what_it_is_pointed_at(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["run"], width, "light")
    charts: int = browser.evaluate("document.querySelectorAll('.drawing').length")
    assert charts == 4
    told = [browser.evaluate(f"{POINT_AT}({number})") for number in range(charts)]
    assert all(not hidden and inside for hidden, _, inside in told)
    assert [text.split()[-1].lstrip("0123456789") for _, text, _ in told] == ["/s", "ms", "ms", "%"]


def test_links_and_numbers_can_be_reached_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["rollout"], 1200, "dark")
    outlined: list[bool] = browser.evaluate(FOCUSED)
    assert len(outlined) > 10
    assert all(outlined)


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"], 1200, "dark")
    assert browser.print_page().startswith(b"%PDF")


def test_the_page_of_a_real_run_opens_without_complaint(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    command = ["tpuserve-loadtest", "run", MODEL, "--html", str(page)]
    with serving(Doubling(fail_every=50)) as model:
        addresses = ["--grpc", model.grpc_address, "--rest", model.rest_url]
        options = [
            "--rate",
            "100",
            "--duration",
            "1",
            "--warm-up",
            "100ms",
            "--fail-if",
            "p90>10s",
            "--generator-limit",
            "note",
        ]
        run = forked_command.run(*command, *addresses, *options, timeout_s=100)
    assert run.returncode == 1, run.stderr
    browser.complaints.clear()
    browser.open(page, 390, "dark")
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.evaluate(CLIPPED) == []
    said: dict[str, Any] = browser.evaluate(
        "({verdict: document.querySelector('.verdict').innerText, all: document.body.innerText})"
    )
    assert "requests" in said["verdict"]
    assert "p90>10s" in said["all"]
    assert "The batch scheduling queue is full" in said["all"]
