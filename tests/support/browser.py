"""A real browser, controlled over a pipe, for screenshots and errors of a page."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Browser:
    """One tab. DevTools protocol messages end in a NUL; the browser reads descriptor 3 and writes 4."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write = os.fdopen(to_browser, "wb", buffering=0)
        self._read = os.fdopen(from_browser, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._rest = b""
        self.complaints: list[str] = []
        self._loaded: set[str] = set()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)

    def open(self, page: Path, width: int, scheme: Literal["light", "dark"]) -> None:
        """Load a page on a screen of `width` CSS pixels with that colour scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        loader = self._call("Page.navigate", url=page.resolve().as_uri())["loaderId"]
        while loader not in self._loaded:  # until then, the previous page may answer
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - any JSON value
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def section_end(self, heading: str) -> int:
        """Return the first CSS pixel below the first section whose text starts with `heading`, and a margin."""
        sections = '[...document.querySelectorAll("section")]'
        found = f"{sections}.find(one => one.innerText.startsWith({json.dumps(heading)})).getBoundingClientRect()"
        return int(self.evaluate(f"Math.ceil({found}.bottom + scrollY + 11)"))

    def take_picture(self, to: Path, height: int | None = None) -> None:
        """Save the page as PNG, or its first `height` CSS pixels."""
        width, whole = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height or whole, whole), "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        to.write_bytes(base64.b64decode(answer["data"]))

    def print_page(self) -> bytes:
        """Return the page as PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        """Close the pipe, which ends the browser."""
        self._write.close()
        self._read.close()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._read.read1()
            assert part, "the browser is gone"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        """Record loaded pages, script errors, console messages, and every fetch other than the page itself."""
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        if method == "Network.requestWillBeSent" and params["type"] != "Document":
            url = params["request"]["url"]
            if not url.startswith("data:"):  # a part of the page itself
                self.complaints.append(f"fetched {url[:100]}")


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start the browser with its own profile, and stop it after the body."""
    assert PROGRAM is not None
    reads, to_browser = os.pipe()
    from_browser, writes = os.pipe()
    # The browser expects these two descriptors at 3 and 4.
    script = f'exec 3<&{reads} 4>&{writes}; exec "$@"'
    command = ["bash", "-c", script, "bash", PROGRAM, *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, pass_fds=(reads, writes), stderr=subprocess.DEVNULL) as process:
        os.close(reads)
        os.close(writes)
        try:
            with contextlib.closing(Browser(to_browser, from_browser)) as browser:
                yield browser
        finally:
            process.terminate()
