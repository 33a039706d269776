"""Test the web pages of the tutorials: a real browser loads them from another origin, and shows the answers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import tensorflow as tf

from tests.e2e.running_server import run_server
from tests.support.optional import needs
from tests.support.saved_models import save_function
from tests.support.web_driver import WebDriver, drive_browser

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow]

TUTORIALS = Path(__file__).resolve().parents[2] / "docs/tutorials"
# The address of the server in the pages.
WRITTEN = "http://localhost:8501"
# The edge of a pixel of the drawing, in CSS pixels.
PIXEL = 30


def most_inked_column(image: tf.Tensor) -> dict[str, tf.Tensor]:
    """Take the column of a drawing with the most ink for its digit."""
    ink = tf.reduce_sum(image, axis=[1, 3])
    return {"probabilities": tf.nn.softmax(tf.pad(ink, [[0, 0], [0, 2]]))}


def longest_of_three(flower: tf.Tensor) -> dict[str, tf.Tensor]:
    """Take the position of the largest of the first three lengths for the species."""
    return {"probabilities": tf.nn.softmax(10 * flower[:, :3])}


@contextmanager
def open_page(tutorial: str, model: str, tmp_path: Path) -> Iterator[WebDriver]:
    """Yield a browser with the page of the tutorial, which calls a server of the model below `tmp_path / model`."""
    site = tmp_path / "site"
    site.mkdir()
    found = re.search(r"Save this as `page.html`:\n\n```html\n(.*?)```", (TUTORIALS / tutorial).read_text(), re.DOTALL)
    assert found
    assert found[1].count(WRITTEN) == 1
    flags = ("--rest_api_enable_cors_support",)
    with (
        run_server(tmp_path / model, tmp_path / "log", *flags, model=model) as server,
        _serve_files(site) as address,
        drive_browser(tmp_path / "profile") as browser,
    ):
        (site / "page.html").write_text(found[1].replace(WRITTEN, server.rest))
        browser.open(f"{address}/page.html")
        yield browser


@contextmanager
def _serve_files(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        thread = Thread(target=files.serve_forever, name="pages")
        thread.start()
        yield f"http://127.0.0.1:{files.server_address[1]}"
        files.shutdown()
        thread.join()


def test_the_page_of_the_keras_tutorial_recognises_a_drawing(tmp_path: Path) -> None:
    save_function(tmp_path / "digits/1", most_inked_column, tf.TensorSpec([None, 8, 8, 1], tf.float32, "image"))
    with open_page("keras.md", "digits", tmp_path) as page:
        left, top = page.evaluate("const box = board.getBoundingClientRect(); return [box.left, box.top];")
        x = left + 3.5 * PIXEL
        for kind, row in (("mousePressed", 1), ("mouseMoved", 1), ("mouseMoved", 6), ("mouseReleased", 6)):
            place = {"x": x, "y": top + row * PIXEL}
            page.command("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)
        page.wait_for_text("#answer", "This is a 3.")


def test_the_page_of_the_jax_tutorial_names_the_species(tmp_path: Path) -> None:
    save_function(tmp_path / "iris/1", longest_of_three, tf.TensorSpec([None, 4], tf.float32, "flower"))
    with open_page("jax.md", "iris", tmp_path) as page:
        page.click("button")
        page.wait_for_text("#answer", "setosa: 100 %")
        page.evaluate("lengths.querySelectorAll('input')[2].value = '9.9'")
        page.click("button")
        page.wait_for_text("#answer", "virginica: 100 %")
