"""Tests of the console on a server that needs credentials: the browser sends a key as its password."""

from pathlib import Path

import pytest

from tests.e2e.console_page.served_models import save_prices
from tests.e2e.console_page.test_try import SEND
from tests.e2e.running_server import run_configured_server
from tests.support.access import KeyFile
from tests.support.optional import needs
from tests.support.web_driver import drive_browser

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow, pytest.mark.xdist_group("console page")]


def test_the_page_its_events_and_its_requests_get_the_password(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "credentials")
    key = keys.add("operator", "predict,read")
    flags = (
        "--model_name=prices", f"--model_base_path={save_prices(tmp_path)}", f"--credentials_file={keys.path}",
        "--enable_batching=true",
    )  # fmt: skip
    with (
        run_configured_server(tmp_path / "log", *flags, model="prices", headers=keys.bearer("operator")) as server,
        drive_browser(tmp_path / "profile") as page,
    ):
        # The browser keeps the password for this address, as after its prompt.
        page.open(f"{server.rest.replace('://', f'://anyone:{key}@')}/console")
        page.wait_for_text("#headline", "Serving")
        assert page.find_complaints(expected="status of 401") == []
        page.open(f"{server.rest}/console")
        page.wait_for_text("#headline", "Serving")
        # The events have arrived.
        page.wait_for("document.querySelector('#live-rows a')")
        page.wait_for("document.querySelector('#try-inputs input')")
        page.click("#try-random")
        page.click(SEND)
        page.wait_for_text("#try-answer", "OK")
        assert page.find_outside(server.rest) == []
        assert page.find_complaints(expected="status of 401") == []
