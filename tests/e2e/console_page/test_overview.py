"""Tests for the console's overview in a real browser: states, live figures, slow requests, control, and restarts."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.console_page.conftest import FLAGS
from tests.e2e.console_page.served_models import ROOT, break_version
from tests.e2e.running_server import RunningServer, run_configured_server, run_in_environment
from tests.support.free_ports import free_ports
from tests.support.optional import needs
from tests.support.saved_models import save_mlp
from tests.support.web_driver import WAIT_S, WebDriver
from tpuserve_client import Client
from tpuserve_server.protocols.console.event_feed import MOST_SUBSCRIBERS

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow, pytest.mark.xdist_group("console page")]

DIGIT = np.zeros((1, 8, 8, 1), np.float32)
MODULES = ROOT / "server/tpuserve_server/protocols/console/page"
LOADED = "return performance.getEntriesByType('resource').map(one => one.name.split('/').at(-1))"
SCALE = """
const values = arguments[0];
return import(new URL("console/static/scale.js", document.baseURI)).then(({spread}) => {
  const scale = spread(1)(values);
  return {lines: scale.lines, places: values.toSorted((a, b) => a - b).map(scale.place)};
});
"""
# Shows a version that loads, and then the same version in another state, as between two reads of the status.
LATER = """
const later = [arguments[0], arguments[1]];
return fetch("debug/status").then((answer) => answer.json()).then(async (status) => {
  const {ModelsView} = await import(new URL("console/static/models_view.js", document.baseURI));
  const view = new ModelsView(document, () => {}, () => {});
  const [model] = status.models;
  for (const [state, code] of [["LOADING", "OK"], later]) {
    view.show({...status, models: [{...model, versions: [{...model.versions[0], version: 99, state, code}]}]}, []);
  }
  return document.querySelector("#model-list details").open;
});
"""
# Shows snapshots of versions, as [model, state, requests a second], and returns the model of the charts after each.
CHARTS = """
const snapshots = arguments[0];
const load = (name) => import(new URL(`console/static/${name}.js`, document.baseURI));
return Promise.all([load("live_view"), load("recent_snapshots")]).then(([{LiveView}, {RecentSnapshots}]) => {
  const recent = new RecentSnapshots();
  const view = new LiveView(document, recent);
  return snapshots.map((versions, at) => {
    recent.add({
      at, devices: [], process: {cpu: 0, rss_bytes: 0}, in_flight: {},
      versions: versions.map(([model, state, rate]) => ({model, version: 1, state, requests_per_s: rate})),
    });
    view.show();
    return JSON.parse(view.choice.value)[0];
  });
});
"""
# Only an event of a stream fills these rows.
HAS_STREAM = "document.querySelector('#live-rows a')"
RATE = "parseFloat(document.querySelector('#live-rows td').innerText) > 0"


@contextmanager
def load(server: RunningServer, model: str, inputs: dict[str, np.ndarray]) -> Iterator[None]:
    """Send requests one after the other until the end of the block."""
    has_ended = threading.Event()

    def send() -> None:
        with Client(server.grpc) as client:
            while not has_ended.is_set():
                client.predict(model, inputs)

    with ExitStack() as stack:
        sender = threading.Thread(target=send, name="load")
        stack.callback(sender.join)
        stack.callback(has_ended.set)
        sender.start()
        yield


def test_live_figures_follow_real_load(browser: WebDriver, tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp/1")
    flags = ("--model_name=mlp", f"--model_base_path={tmp_path / 'mlp'}", *FLAGS[:1])
    with run_configured_server(tmp_path / "log", *flags, model="mlp") as server:
        browser.resize(1100, "light")
        browser.open(f"{server.rest}/console")
        browser.wait_for_text("#headline", "Serving 1 model, 1 version")
        with load(server, "mlp", {"x": np.zeros((1, 64), np.float32)}):
            browser.wait_for(RATE)
            browser.wait_for_text("#live-rows", "ms")
            # Requests, latencies and batches are drawn, and described to screen readers.
            browser.wait_for("document.querySelectorAll('#charts path[d*=L]').length > 3")
            browser.wait_for_text("#slow-rows", "mlp 1")
        described = browser.evaluate(
            "return [...document.querySelectorAll('#charts .drawing svg')].map(one => one.ariaLabel)"
        )
        assert any("p99: now" in each or "p99: no value now" in each for each in described)
        browser.wait_for(f"!({RATE})")
        assert browser.find_outside(server.rest) == []
        assert browser.find_complaints() == []


def test_every_module_of_the_page_is_loaded(page: WebDriver) -> None:
    # A module with a wrong import or syntax stops the page, and the fixture finds its error.
    assert {name for name in page.evaluate(LOADED) if name.endswith(".js")} == {
        path.name for path in MODULES.glob("*.js")
    }


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([], [0, 0.5, 1]),
        ([3, 7, 0], [0, 5, 10]),
        ([1.7, 34.0], [0, 20, 40]),
        ([1.7, 130, 0], [3, 10, 30, 100]),
        ([0.4, 9], [0.5, 1, 2, 5]),
        ([0.01, 5000], [0.01, 1, 100]),
    ],
)
def test_latency_axis_is_logarithmic_for_values_that_differ_widely(
    page: WebDriver, values: list[float], lines: list[float]
) -> None:
    found = page.evaluate(SCALE, values)
    assert found["lines"] == pytest.approx(lines)
    assert found["places"] == sorted(found["places"])
    assert all(0 <= place <= 1 for place in found["places"])


@pytest.mark.parametrize(("state", "code", "is_open"), [("END", "INTERNAL", True), ("AVAILABLE", "OK", False)])
def test_version_unfolds_when_it_fails(page: WebDriver, state: str, code: str, is_open: bool) -> None:
    assert page.evaluate(LATER, state, code) is is_open


def test_charts_are_of_the_version_that_serves_with_the_most_requests(page: WebDriver) -> None:
    failed = ["a", "START", None]
    shown = page.evaluate(
        CHARTS,
        [
            [failed],
            [failed, ["b", "AVAILABLE", 0], ["c", "AVAILABLE", 0]],
            [failed, ["b", "AVAILABLE", 1], ["c", "AVAILABLE", 2]],
            # The charts stay after the end of a load.
            [failed, ["b", "AVAILABLE", 0], ["c", "AVAILABLE", 0]],
            [failed, ["b", "AVAILABLE", 0], ["c", "UNLOADING", 0]],
        ],
    )
    assert shown == ["a", "b", "c", "c", "b"]


def test_slow_request_unfolds_to_its_stages_and_ids(page: WebDriver, site: RunningServer) -> None:
    with Client(site.rest, headers={"x-request-id": "night-42"}) as client:
        # More requests than the server keeps for a minute: those of earlier tests may all be slower than one.
        for _ in range(30):
            client.predict("digits", {"image": DIGIT}, version=1)
    page.wait_for_text("#slow-rows", "digits 1")
    row = "[...document.querySelectorAll('#slow-rows .slow')].find(one => one.innerText.includes('digits 1'))"
    page.evaluate(f"{row}.querySelector('button').focus()")
    page.press(Keys.ENTER)
    details = page.wait_for_text("#slow-rows .slow-details:not([hidden])", "execute")
    assert "night-42" in details
    assert page.evaluate("return document.activeElement.ariaExpanded") == "true"
    # A new list keeps the row open, and the focus on its button.
    with Client(site.rest) as client:
        client.predict("digits", {"image": DIGIT}, version=1)
    page.wait_for("document.querySelectorAll('#slow-rows .slow').length > 1")
    assert page.evaluate("return document.activeElement.ariaExpanded") == "true"


def test_version_shows_its_device_signatures_costs_and_report(page: WebDriver) -> None:
    page.click("#live-rows a")
    version = page.wait_for_text("#version-digits-1", "Signature photo")
    for part in (
        "cpu: exported without device programs",
        "float [?, 8, 8, 1]",
        "Batches of at most 32 rows",
        "32 rows",
        "Class labels",
        "expected >= 0.2",
        "450 rows of held_out.npz",
    ):
        assert part in version
    page.click("#version-digits-1 a")
    page.wait_for("document.title.includes('digits') || document.body.innerText.includes('digits')")


def test_failed_version_comes_first_with_its_reason(browser: WebDriver, tmp_path: Path) -> None:
    base = tmp_path / "mlp"
    save_mlp(base / "1")
    flags = ("--model_name=mlp", f"--model_base_path={base}", *FLAGS)
    with run_configured_server(tmp_path / "log", *flags, model="mlp") as server:
        browser.open(f"{server.rest}/console")
        browser.wait_for_text("#headline", "Serving")
        break_version(base, 2)
        browser.wait_for_text("#headline", "1 problem")
        assert "mlp version 2 failed" in browser.wait_for_text("#causes", "the message is damaged")
        # The version unfolds by itself.
        assert browser.evaluate("return document.getElementById('version-mlp-2').open")
        save_mlp(base / "3")
        browser.wait_for_text("#headline", "Serving 1 model")
        assert browser.text("#causes") == ""


@pytest.mark.parametrize(("reason", "levels"), [("", ["warn"]), ("load attempt 1 of 6 failed", ["bad", "warn"])])
def test_first_load_is_a_warning_until_an_attempt_fails(page: WebDriver, reason: str, levels: list[str]) -> None:
    version = {"version": 1, "state": "LOADING", "code": "OK", "reason": reason}
    model = {"name": "new", "ready": False, "reason": "", "versions": [version]}
    status = {"server": {"state": "ready"}, "models": [model], "devices": []}
    find = "return import('/console/static/problems.js').then(module => module.findProblems(arguments[0], null))"
    assert [problem["level"] for problem in page.evaluate(find, status)] == levels


def test_errors_of_clients_are_a_warning_with_their_code(page: WebDriver, site: RunningServer) -> None:
    wrong = httpx.post(f"{site.rest}/v1/models/digits:predict", json={"instances": [1]}, timeout=WAIT_S)
    assert wrong.status_code == 400
    assert "INVALID_ARGUMENT" in page.wait_for_text("#causes", "requests with errors")
    assert "problem" not in page.text("#headline")


def test_page_that_the_browser_keeps_holds_no_connection_and_continues_when_the_user_returns(
    page: WebDriver, site: RunningServer
) -> None:
    for _ in range(3):
        page.open(f"{site.rest}/console")
        page.wait_for(HAS_STREAM)
    # Only the last page has a stream. The browser itself forgets a kept page after 50 s.
    deadline_s = time.monotonic() + 20
    while free_streams(site) != MOST_SUBSCRIBERS - 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    page.open("about:blank")
    page.go_back()
    page.wait_for_text("#headline", "Serving")
    with load(site, "digits", {"image": DIGIT}):
        page.wait_for(RATE)


def free_streams(site: RunningServer) -> int:
    """Return the number of streams of events that the server opens before it refuses one.

    They share a connection of HTTP/2, so the server learns at once that all have ended. A page then gets one.
    """
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=site.rest, http1=False, http2=True, timeout=WAIT_S))
        for opened in range(MOST_SUBSCRIBERS + 1):
            if stack.enter_context(client.stream("GET", "/console/events")).status_code != 200:
                return opened
    raise AssertionError(f"the server has opened more than {MOST_SUBSCRIBERS} streams")


def test_model_is_unloaded_after_a_confirmation_and_loaded_again(page: WebDriver) -> None:
    page.click("#unload-prices")
    page.wait_for_text("#control-dialog", "Unload prices?")
    # The focus stays in the dialog, and escape cancels.
    for _ in range(4):
        page.press(Keys.TAB)
        assert page.evaluate(
            "return document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.press(Keys.ESCAPE)
    page.wait_for("!document.getElementById('control-dialog').open")
    assert page.text("#control-result") == ""
    page.click("#unload-prices")
    page.click("#control-confirm")
    page.wait_for_text("#control-result", "accepted")
    page.wait_for("!document.getElementById('live-rows').innerText.includes('prices')")
    # The configuration has no such model now, but the page can still load it.
    page.wait_for_text("#model-list", "unloaded")
    page.click("#load-prices")
    page.click("#control-confirm")
    page.wait_for("document.getElementById('live-rows').innerText.includes('prices')")
    page.wait_for("!document.getElementById('model-list').innerText.includes('unloaded')")


def test_client_without_control_gets_no_buttons(browser: WebDriver, site: RunningServer) -> None:
    browser.open(f"{site.rest.replace('127.0.0.1', 'console.test')}/console")
    browser.wait_for_text("#model-list", "digits")
    assert "Unload" not in browser.text("#model-list")
    assert "18501" not in browser.text("#server-facts")


def test_page_reconnects_after_a_restart(browser: WebDriver, tmp_path: Path) -> None:
    save_mlp(tmp_path / "mlp/1")
    ports = free_ports(2)
    flags = (f"--rest_api_port={ports[1]}", "--model_name=mlp", f"--model_base_path={tmp_path / 'mlp'}")
    with run_in_environment(tmp_path / "first", ports, {}, *flags, model="mlp") as server:
        browser.open(f"{server.rest}/console")
        browser.wait_for_text("#headline", "Serving")
        browser.evaluate("window.wasLoadedOnce = true")
        server.terminate()
    browser.wait_for_text("#connection", "No connection")
    with run_in_environment(tmp_path / "second", ports, {}, *flags, model="mlp") as server:
        browser.wait_for("document.getElementById('connection').innerText === ''")
        pid = browser.evaluate("return fetch('debug/status').then(answer => answer.json()).then(one => one.server.pid)")
        browser.wait_for_text("#server-facts", str(pid))
        assert browser.evaluate("return window.wasLoadedOnce")
    browser.find_complaints()
