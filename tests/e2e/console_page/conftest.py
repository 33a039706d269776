"""Fixtures of the console's page: models, a server, and a browser that must not complain or look elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.console_page.served_models import export_digits, save_picture, save_prices, write_configuration
from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.web_driver import WebDriver, drive_browser

FLAGS = (
    "--enable_batching=true", "--allow_version_labels_for_unavailable_models=true", "--max_num_load_retries=0",
)  # fmt: skip


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models and their configuration."""
    folder = tmp_path_factory.mktemp("models")
    export_digits(folder)
    save_prices(folder)
    write_configuration(folder)
    return folder


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a PNG file of a seven."""
    return save_picture(tmp_path_factory.mktemp("picture") / "seven.png", 7)


@pytest.fixture(scope="module")
def site(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server of both models."""
    flags = (f"--model_config_file={models / 'models.config'}", *FLAGS)
    with run_configured_server(tmp_path_factory.mktemp("log") / "log", *flags, model="digits") as server:
        yield server


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """Yield a browser that resolves console.test to this machine."""
    with drive_browser(
        tmp_path_factory.mktemp("profile"), "--host-resolver-rules=MAP console.test 127.0.0.1"
    ) as driver:
        yield driver


@pytest.fixture
def page(browser: WebDriver, site: RunningServer) -> Iterator[WebDriver]:
    """Yield the browser with the console open. At the end it has no complaint and no request to another origin."""
    browser.resize(1100, "light")
    browser.open(f"{site.rest}/console")
    browser.wait_for_text("#headline", "Serving")
    browser.wait_for("document.querySelector('#live-rows a')")
    yield browser
    assert browser.find_outside(site.rest) == []
    assert browser.find_complaints(expected="status of 400") == []
