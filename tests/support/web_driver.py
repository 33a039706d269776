"""A real browser, controlled by chromium-driver: input, dropped files, accessibility and requested URLs."""

import base64
import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.browser import PROGRAM

_T = TypeVar("_T")
DRIVER: Final = shutil.which("chromedriver")
# Real time, and only a bound: pages answer in milliseconds.
WAIT_S: Final = 60.0
_ARGUMENTS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip
_CENTER: Final = """
arguments[0].scrollIntoView({block: "center"});
const box = arguments[0].getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2];
"""
_AXE: Final = "const done = arguments[arguments.length - 1]; axe.run(document).then(done);"
# Elements that exceed the right edge, except those inside a scrollable box.
_OVERFLOWING: Final = """
return [...document.querySelectorAll("body *")].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scrolls, pre"))
  .map(one => one.outerHTML.slice(0, 80))
"""


class WebDriver:
    """One tab. Methods that look for an element take a CSS selector, and raise if there is none."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        """Control the tab of `driver`."""
        self._driver = driver
        self._axe = (files("axe_playwright_python") / "axe.min.js").read_text()

    def open(self, url: str) -> None:
        """Load a page. Complaints and requests of the previous page are forgotten."""
        self._driver.get("about:blank")
        for log in ("browser", "performance"):
            self._read_log(log)
        self._driver.get(url)

    def resize(self, width: int, scheme: Literal["light", "dark"], height: int = 900) -> None:
        """Use a screen of these CSS pixels with that color scheme."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **screen)
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[scheme_feature])

    def find(self, selector: str) -> WebElement:
        """Return the first element."""
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return self._try_again(lambda: self.find(selector).text)

    def click(self, selector: str) -> None:
        """Click an element."""
        self._try_again(lambda: self.find(selector).click())

    def _try_again(self, action: Callable[[], _T]) -> _T:
        """Repeat an action whose element the page has replaced meanwhile, as the console does with each new status."""
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                return action()

    def press(self, *keys: str) -> None:
        """Press keys one after the other, with the focus where it is."""
        webdriver.ActionChains(self._driver).send_keys(*keys).perform()

    def evaluate(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - any JSON value
        """Run the body of a function, and return its result."""
        return self._driver.execute_script(script, *arguments)

    def go_back(self) -> None:
        """Return to the previous page; a script that did so would be stopped by its own navigation."""
        self._driver.back()

    def wait_for(self, condition: str, *arguments: object) -> Any:  # noqa: ANN401 - any JSON value
        """Wait until an expression is true, and return its value."""
        waiting = WebDriverWait(self._driver, WAIT_S, poll_frequency=0.05)
        try:
            return waiting.until(lambda _: self.evaluate(f"return {condition}", *arguments))
        except TimeoutException:
            shown = self.evaluate("return document.body.innerText")
            raise AssertionError(f"{condition}, {arguments}: {shown[:3000]}\n{self.find_complaints()}") from None

    def wait_for_text(self, selector: str, part: str) -> str:
        """Wait until an element contains a text, and return its whole text."""
        self.wait_for("document.querySelector(arguments[0])?.innerText.includes(arguments[1])", selector, part)
        return self.text(selector)

    def wait_for_file(self, path: Path) -> None:
        """Wait until the browser has downloaded a file."""
        WebDriverWait(self._driver, WAIT_S, poll_frequency=0.05).until(lambda _: path.exists())

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in a file input."""
        self.find(selector).send_keys(str(path))

    def drop_file(self, selector: str, path: Path) -> None:
        """Drag a file over an element and drop it, with real input events."""
        x, y = self.evaluate(_CENTER, self.find(selector))
        dragged = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.command("Input.dispatchDragEvent", type=kind, x=x, y=y, data=dragged)

    def find_violations(self) -> list[str]:
        """Return axe's violations of the page in its present state, with the elements."""
        self.evaluate(self._axe)
        self._driver.set_script_timeout(WAIT_S)
        found = self._driver.execute_async_script(_AXE)
        return [
            f"{rule['id']}: {node['html'][:120]} {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def find_overflowing(self) -> Sequence[str]:
        """Return elements that exceed the width of the screen."""
        wide = self.evaluate("return document.documentElement.scrollWidth > innerWidth ? ['the document'] : []")
        return [*wide, *self.evaluate(_OVERFLOWING)]

    def find_complaints(self, *, expected: str = "never expected") -> list[str]:
        """Return new messages of the console and script errors, except those that contain `expected`."""
        return [each["message"] for each in self._read_log("browser") if expected not in each["message"]]

    def find_outside(self, origin: str) -> list[str]:
        """Return the URLs that the page has requested from any other origin."""
        urls = [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]
        assert any(url.startswith(origin) for url in urls)
        return [url for url in urls if not url.startswith((f"{origin}/", "data:", f"blob:{origin}/"))]

    def take_picture(self, to: Path, top: float, height: float) -> None:
        """Save a part of the page as PNG, in CSS pixels."""
        clip = {"x": 0, "y": top, "width": self.evaluate("return innerWidth"), "height": height, "scale": 1}
        answer = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        to.write_bytes(base64.b64decode(answer["data"]))

    def command(self, method: str, **params: object) -> Any:  # noqa: ANN401 - any JSON value
        """Send a command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(method, params)

    def _read_log(self, name: str) -> list[dict[str, Any]]:
        """Return the new entries of a log, with any JSON values."""
        entries: list[dict[str, Any]] = self._driver.get_log(name)  # type: ignore[no-untyped-call] # no types there
        return entries

    def _events(self, method: str) -> Iterator[Any]:
        for entry in self._read_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == method:
                yield message


@contextlib.contextmanager
def drive_browser(profile: Path, *arguments: str) -> Iterator[WebDriver]:
    """Start a browser with its own profile, and stop it after the body."""
    assert PROGRAM is not None
    assert DRIVER is not None
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAM
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}", *arguments):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With the paths of both programs, selenium downloads none.
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield WebDriver(driver)
    finally:
        driver.quit()
