"""Tests for the console of a server with TLS: its programs use TLS, and the port of the server."""

from pathlib import Path

import grpc
import pytest

from tests.e2e.console_page.served_models import save_prices
from tests.e2e.console_page.test_try import SEND, run_python, snippet
from tests.e2e.running_server import run_configured_server
from tests.support.certificates import Authority
from tests.support.optional import needs
from tests.support.web_driver import drive_browser

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow, pytest.mark.xdist_group("console page")]


def write_config(folder: Path, authority: Authority) -> Path:
    """Write the certificate in TensorFlow Serving's configuration of TLS, and return its file."""
    pem, file = authority.server, folder / "ssl.config"
    file.write_text(f"server_key: '{escaped(pem.key)}' server_cert: '{escaped(pem.cert)}'")
    return file


def escaped(path: Path) -> str:
    return path.read_text().replace("\n", "\\n")


def test_the_grpc_program_uses_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "certificates").mkdir()
    authority = Authority(tmp_path / "certificates")
    flags = (
        "--model_name=prices", f"--model_base_path={save_prices(tmp_path)}",
        f"--ssl_config_file={write_config(tmp_path, authority)}",
    )  # fmt: skip
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with (
        run_configured_server(tmp_path / "log", *flags, model="prices", credentials=credentials) as server,
        drive_browser(tmp_path / "profile", "--ignore-certificate-errors") as page,
    ):
        page.open(f"{server.rest.replace('http:', 'https:')}/console")
        page.wait_for("document.querySelector('#try-inputs input')")
        page.click("#try-random")
        page.click(SEND)
        page.wait_for_text("#try-answer", "OK")
        assert f'grpc.secure_channel("{server.grpc}"' in snippet(page, "gRPC")
        # The program trusts the authorities of the system.
        monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(authority.ca))
        assert "price [" in run_python(page, tmp_path, "gRPC")
        assert f"{server.grpc} with TLS" in page.evaluate("return document.getElementById('server-facts').textContent")
