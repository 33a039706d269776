"""Tests for the console's form in a real browser: a request from the signature, its response, and its programs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.console_page.pixel_values import select_pixel_values
from tests.support.optional import needs
from tests.support.web_driver import WebDriver

pytestmark = [needs("chromium", "chromedriver", "curl"), pytest.mark.slow, pytest.mark.xdist_group("console page")]

SEND = "#try-form .primary"
STAGES = ("receive", "decode", "queue", "execute", "encode", "network")


def choose(page: WebDriver, version: str, signature: str) -> None:
    for field, value in (("version", version), ("signature", signature)):
        page.evaluate(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('change', {bubbles: true}))",
            f"try-{field}",
            value,
        )


def write_json(page: WebDriver, text: str) -> None:
    """Replace the text of the JSON editor at once. Typing it would take seconds."""
    page.evaluate(
        "const editor = document.getElementById('try-editor'); editor.value = arguments[0];"
        "editor.dispatchEvent(new Event('input', {bubbles: true}))",
        text,
    )


def snippet(page: WebDriver, name: str) -> str:
    """Return a program of the page, by the name of its tab."""
    text = page.evaluate(f"return document.querySelector('#panel-{name} pre').textContent")
    assert isinstance(text, str)
    return text


def run_curl(page: WebDriver, folder: Path) -> dict[str, Any]:
    result = subprocess.run(
        ["bash", "-c", snippet(page, "curl")], cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def run_python(page: WebDriver, folder: Path, name: str = "Python") -> str:
    command = [sys.executable, "-c", snippet(page, name)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120).stdout


def raw_answer(page: WebDriver) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(page.evaluate("return document.querySelector('#try-answer pre').textContent"))
    return answer


def save_request(page: WebDriver, folder: Path) -> None:
    """Save the file that the page offers for a long request."""
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#request-file")
    page.wait_for_file(folder / "request.json")


def test_dropped_picture_is_classified(page: WebDriver, picture: Path, tmp_path: Path) -> None:
    choose(page, "digits version 1", "serving_default")
    page.drop_file("#try-inputs .drop", picture)
    page.wait_for_text("#try-inputs", "seven.png: select the pixel values")
    page.click(SEND)
    page.wait_for_text("#try-message", "Select the pixel values of image that the model was trained with.")
    select_pixel_values(page, "0..1")
    page.wait_for_text("#try-inputs", "seven.png, sent as 8")
    page.click(SEND)
    answer = page.wait_for_text("#try-answer", "Top 5 of probabilities")
    assert page.text("#try-answer .top tbody tr").startswith("seven")
    assert all(stage in answer for stage in STAGES)
    assert page.evaluate("return document.activeElement.id") == "try-answer"
    expected = raw_answer(page)["outputs"]
    assert run_curl(page, tmp_path)["outputs"] == expected
    assert json.loads(run_python(page, tmp_path))["outputs"]["probabilities"][0] == pytest.approx(expected[0])
    over_grpc = re.search(r"probabilities (\[.*\])", run_python(page, tmp_path, "gRPC"))
    assert over_grpc is not None
    assert json.loads(over_grpc[1])[0] == pytest.approx(expected[0], rel=1e-5)


def test_inverted_picture_and_another_scale_change_what_is_sent(page: WebDriver, picture: Path) -> None:
    choose(page, "digits version 1", "serving_default")
    select_pixel_values(page, "0..1")
    page.choose_file("#input-image", picture)
    page.wait_for("document.getElementById('panel-curl')")
    before = snippet(page, "curl")
    page.click("#try-inputs .check input")
    page.wait_for("document.querySelector('#panel-curl pre').textContent !== arguments[0]", before)
    select_pixel_values(page, "0..255")
    page.wait_for("document.querySelector('#panel-curl pre').textContent.includes('[255]')")
    # The choice is remembered.
    choose(page, "digits version 1", "photo")
    choose(page, "digits version 1", "serving_default")
    assert page.evaluate("return document.getElementById('input-image-scale').value") == "0..255"
    page.evaluate("localStorage.clear()")


def test_file_is_sent_as_it_is(page: WebDriver, picture: Path) -> None:
    choose(page, "digits version 1", "photo")
    page.drop_file("#try-inputs .drop", picture)
    page.wait_for_text("#try-inputs", "sent as it is")
    page.click(SEND)
    page.wait_for_text("#try-answer", "Top 5 of probabilities")
    assert page.text("#try-answer .top tbody tr").startswith("seven")
    expected = raw_answer(page)["outputs"]
    assert run_curl(page, picture.parent)["outputs"] == expected
    # The program reads the user's file.
    assert "seven.png" in snippet(page, "Python")
    assert json.loads(run_python(page, picture.parent))["outputs"]["probabilities"][0] == pytest.approx(expected[0])


def test_long_request_is_offered_as_a_file(page: WebDriver, tmp_path: Path) -> None:
    choose(page, "digits version 1", "serving_default")
    page.click("#try-random")
    page.click("#try-json")
    values = json.loads(page.evaluate("return document.getElementById('try-editor').value"))
    write_json(page, json.dumps({"image": values["image"] * 8}))
    page.click(SEND)
    page.wait_for_text("#try-answer", "probabilities, row 3")
    save_request(page, tmp_path)
    expected = raw_answer(page)["outputs"]
    assert run_curl(page, tmp_path)["outputs"] == expected
    printed = json.loads(run_python(page, tmp_path))["outputs"]["probabilities"]
    assert printed == [pytest.approx(row) for row in expected]


def test_numbers_and_text_have_fields(page: WebDriver, tmp_path: Path) -> None:
    choose(page, "prices version 7", "serving_default")
    for number, value in enumerate(("1", "2.5", "3")):
        field = page.find(f"#input-features{f'-{number}' if number else ''}")
        field.clear()
        field.send_keys(value)
    page.find("#input-city").send_keys("it's Zürich")
    page.find("#input-age").clear()
    page.find("#input-age").send_keys("4")
    page.press(Keys.ENTER)
    page.wait_for_text("#try-answer", "OK")
    assert raw_answer(page)["outputs"] == {"price": [17.0], "letters": [12]}
    assert run_curl(page, tmp_path)["outputs"] == {"price": [17.0], "letters": [12]}
    assert json.loads(run_python(page, tmp_path))["outputs"] == {"price": [17.0], "letters": [12]}
    assert "price [17.0]" in run_python(page, tmp_path, "gRPC")


def test_errors_name_the_input_or_are_the_servers(page: WebDriver) -> None:
    choose(page, "prices version 7", "serving_default")
    page.find("#input-age").clear()
    page.click(SEND)
    page.wait_for_text("#try-message", "Enter a number for age")
    page.click("#try-json")
    write_json(page, "{")
    page.click(SEND)
    page.wait_for_text("#try-message", "The inputs are no JSON")
    write_json(page, '{"features": [[1, 2, 3]], "city": [1], "age": [1]}')
    page.click(SEND)
    answer = page.wait_for_text("#try-answer", "error")
    assert "HTTP 400" in answer
    assert "is not of expected type: string" in answer
    assert "decode" in answer


def test_classify_takes_examples(page: WebDriver, tmp_path: Path) -> None:
    choose(page, "digits version 1", "classes")
    examples = json.dumps([{"image": [0.5] * 64}])
    write_json(page, examples)
    page.click(SEND)
    page.wait_for_text("#try-answer", "Top 5 of classes")
    best = page.evaluate("return document.querySelector('#try-answer .top tbody th').textContent")
    assert run_curl(page, tmp_path)["results"] == raw_answer(page)["results"]
    assert f"label='{best}'" in run_python(page, tmp_path)


def test_programs_are_chosen_with_the_keyboard(page: WebDriver) -> None:
    choose(page, "prices version 7", "serving_default")
    page.evaluate("document.getElementById('tab-curl').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert page.evaluate("return document.activeElement.id") == "tab-Python"
    assert page.find("#panel-Python").is_displayed()
    assert not page.find("#panel-curl").is_displayed()
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.find("#panel-gRPC").is_displayed()


def test_long_integers_are_never_rounded(page: WebDriver) -> None:
    page.evaluate("import('/console/static/exact_json.js').then((module) => (window.exact = module))")
    page.wait_for("window.exact")
    text = '{"n": [9007199254740993, -9007199254740993, 9007199254740991], "f": [0.12345678901234567, NaN, -Infinity]}'
    assert page.evaluate("return exact.parse(arguments[0])", text) == {
        "n": ["9007199254740993", "-9007199254740993", 9007199254740991],
        "f": [pytest.approx(0.12345678901234567), "NaN", "-Infinity"],
    }
    choose(page, "prices version 7", "serving_default")
    page.find("#input-age").clear()
    page.find("#input-age").send_keys("9007199254740993")
    page.click(SEND)
    page.wait_for_text("#try-message", "The browser would round 9007199254740993")
    page.click("#try-json")
    write_json(page, '{"features": [[1, 2, 3]], "city": ["12345678901234567890"], "age": [12345678901234567890]}')
    page.click(SEND)
    page.wait_for_text("#try-message", "The browser would round 12345678901234567890")


def test_classes_without_finite_scores_have_no_order(page: WebDriver) -> None:
    page.evaluate("import('/console/static/answer.js').then((module) => (window.answer = module))")
    page.wait_for("window.answer")
    for score, classes in (("NaN", 0), (0.5, 1)):
        results = {"results": [[["a", score], ["b", 0.25]]]}
        assert len(page.evaluate("return answer.topClasses(arguments[0], null, [])", results)) == classes


def test_a_browser_that_blocks_its_storage_shows_the_form(page: WebDriver) -> None:
    page.evaluate("Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('blocked'); }})")
    choose(page, "digits version 1", "serving_default")
    select_pixel_values(page, "0..255")
    page.click("#try-random")
    page.wait_for_text("#try-inputs", "generated values")


def test_a_response_to_an_earlier_choice_is_not_shown(page: WebDriver) -> None:
    choose(page, "prices version 7", "serving_default")
    page.evaluate(
        "const original = fetch; window.fetch = (...all) => new Promise((go) => {"
        "window.release = () => original(...all).then((answer) => { go(answer); window.fetch = original; }); })"
    )
    page.click(SEND)
    page.wait_for("window.release !== undefined")
    choose(page, "digits version 1", "classes")
    page.evaluate("release().then(() => setTimeout(() => (window.isReleased = true)))")
    page.wait_for("window.isReleased")
    assert not page.find("#try-answer").is_displayed()
