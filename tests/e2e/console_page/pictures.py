"""`python -m tests.e2e.console_page.pictures`: make docs/images/console-*.png from a real server under real load.

They show the overview in both modes, a tried picture in dark mode, and a failed version on a phone.
"""

import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from tests.e2e.console_page.conftest import FLAGS
from tests.e2e.console_page.pixel_values import select_pixel_values
from tests.e2e.console_page.served_models import (
    ROOT,
    break_version,
    export_digits,
    save_picture,
    save_prices,
    write_configuration,
)
from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.web_driver import WebDriver, drive_browser
from tpuserve_client import Client

IMAGES: Final = ROOT / "docs/images"
# The charts show the last five minutes.
_LOAD_S: Final = 300.0
_CLIENTS: Final = 3
_COLOURS: Final = 192
_TOP_OF: Final = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
_BOTTOM_OF: Final = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom + scrollY"
_MARGIN: Final = 12.0


def main() -> None:
    """Export the models, serve them under load, and take the pictures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the browser writes files until it has ended
        folder = Path(name)
        export_digits(folder, epochs=15)
        save_prices(folder)
        flags = (f"--model_config_file={write_configuration(folder)}", *FLAGS)
        picture = save_picture(folder / "seven.png", 7)
        with ExitStack() as stack:
            server = stack.enter_context(run_configured_server(folder / "log", *flags, model="digits"))
            browser = stack.enter_context(drive_browser(folder / "profile"))
            browser.resize(1100, "light")
            browser.open(f"{server.rest}/console")
            browser.wait_for_text("#headline", "Serving")
            _send_load(server)
            _take_pictures(browser, server, folder, picture)


def _take_pictures(browser: WebDriver, server: RunningServer, folder: Path, picture: Path) -> None:
    sending = threading.Thread(target=_send_load, args=(server, 15.0), name="load")
    sending.start()
    browser.click("#version-digits-1 summary")
    _take(browser, "console-light", "header", "#version-digits-1 .signature")
    _take(browser, "console-overview-light", "header", "#charts")
    browser.resize(1100, "dark")
    _take(browser, "console-overview-dark", "header", "#charts")
    select_pixel_values(browser, "0..1")
    browser.drop_file("#try-inputs .drop", picture)
    browser.wait_for("document.getElementById('panel-curl')")
    browser.click("#try-form .primary")
    browser.wait_for_text("#try-answer", "Top 5")
    _take(browser, "console-dark", "#slow", "#try")
    break_version(folder / "prices", 8)
    browser.resize(390, "light", height=844)
    browser.wait_for_text("#headline", "1 problem")
    browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    _take(browser, "console-phone", "header", "#charts figure:nth-of-type(3)")
    sending.join()


def _take(browser: WebDriver, name: str, first: str, last: str) -> None:
    picture = IMAGES / f"{name}.png"
    top = max(browser.evaluate(_TOP_OF, first) - _MARGIN, 0.0)
    bottom = browser.evaluate(_BOTTOM_OF, last) + _MARGIN
    browser.take_picture(picture, top, bottom - top)
    whole = Image.open(picture).convert("RGB")
    # Other quantization methods tint the page's background.
    whole.quantize(_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(picture, optimize=True)


def _send_load(server: RunningServer, duration_s: float = _LOAD_S) -> None:
    """Send requests with a rate that changes slowly, and prices now and then."""
    ends_s = time.monotonic() + duration_s
    clients = [threading.Thread(target=_send, args=(server, ends_s, seed), name="client") for seed in range(_CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def _send(server: RunningServer, ends_s: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    with Client(server.grpc, headers={"x-request-id": f"client-{seed}"}) as client:
        while (left_s := ends_s - time.monotonic()) > 0:
            rows = int(random.integers(1, 6))
            client.predict("digits", {"image": random.random((rows, 8, 8, 1), np.float32)})
            if random.random() < 0.1:
                features = {
                    "features": np.ones((1, 3), np.float32),
                    "city": np.array([b"Oslo"], object),
                    "age": np.ones(1, np.int32),
                }
                client.predict("prices", features)
            busy = 1.5 + np.sin(left_s / 30)
            time.sleep(float(random.exponential(0.04 / busy)))


if __name__ == "__main__":
    main()
