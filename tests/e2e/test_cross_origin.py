"""Test that a page of another origin uses the server: a real browser asks for permission and hides what it must."""

from pathlib import Path

import pytest

from tests.e2e.running_server import RunningServer, run_server
from tests.support.optional import needs
from tests.support.saved_models import save_mlp
from tests.support.web_driver import WebDriver, drive_browser

pytestmark = [needs("chromium", "chromedriver"), pytest.mark.slow]

# The names of two origins, which the browser resolves to this machine.
PAGE, SERVER = "page.test", "server.test"
FETCH = """
const [url, options] = arguments;
window.answer = null;
fetch(url, options).then(
  async (response) => {
    await response.text();
    window.answer = { status: response.status, headers: Object.fromEntries(response.headers) };
  },
  (error) => { window.answer = { error: String(error) }; },
);
"""
# Each needs the permission of a preflight.
HEADERS = {
    "content-type": "application/json",
    "authorization": "Bearer of-nobody",
    "x-request-id": "from-a-page",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-tpuserve-timing": "1",
    "x-tpuserve-timeout-ms": "30000",
}


def fetch(page: WebDriver, url: str, **options: object) -> dict[str, object]:
    """Send a request as the page's script would, and return the response that the script sees."""
    page.evaluate(FETCH, url, options)
    answer: dict[str, object] = page.wait_for("window.answer")
    return answer


def test_a_page_of_another_origin_reads_predictions_and_their_headers(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m" / "1")
    with (
        run_server(tmp_path / "m", tmp_path / "log", "--rest_api_enable_cors_support") as server,
        drive_browser(
            tmp_path / "profile", f"--host-resolver-rules=MAP {PAGE} 127.0.0.1, MAP {SERVER} 127.0.0.1"
        ) as page,
    ):
        at = _named(server, SERVER)
        # Any page of this other origin; the console's policy would allow no other server.
        page.open(f"{_named(server, PAGE)}/healthz")
        rows = f'{{"instances": [{[1.0] * 64}]}}'
        predicted = fetch(page, f"{at}/v1/models/{server.model}:predict", method="POST", headers=HEADERS, body=rows)
        assert predicted["status"] == 200, predicted
        seen = predicted["headers"]
        assert isinstance(seen, dict)
        assert (seen["x-tpuserve-model-version"], seen["x-request-id"]) == ("1", "from-a-page")
        assert "total" in seen["server-timing"]
        for path in ("/v2/health/ready", f"/v2/models/{server.model}", "/metrics", "/readyz"):
            assert fetch(page, at + path, headers={"x-request-id": "1"})["status"] == 200
        # The permission to read is none to change the server.
        assert fetch(page, f"{at}/v2/repository/models/{server.model}/unload", method="POST")["status"] == 403


def test_without_the_flag_the_browser_refuses(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m" / "1")
    with (
        run_server(tmp_path / "m", tmp_path / "log") as server,
        drive_browser(
            tmp_path / "profile", f"--host-resolver-rules=MAP {PAGE} 127.0.0.1, MAP {SERVER} 127.0.0.1"
        ) as page,
    ):
        page.open(f"{_named(server, PAGE)}/healthz")
        for path in ("/v1/models/" + server.model, "/v2/health/ready"):
            assert fetch(page, _named(server, SERVER) + path) == {"error": "TypeError: Failed to fetch"}


def _named(server: RunningServer, name: str) -> str:
    return server.rest.replace("127.0.0.1", name)
