"""The console of a real server: its numbers, its limits, and a drain that does not wait for it."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.running_server import RunningServer, run_server

PREDICT = "/v1/models/calculator:predict"
ROWS = {"instances": [[1, 2], [3, 4]]}
TIMEOUT_S = 60.0


class Events:
    """An open stream of events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self, wanted: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the data of the next event of this name."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name == wanted:
                return json.loads(line.removeprefix("data: "))
        raise EOFError(f"The stream ended before an event {wanted}")

    def rest(self) -> list[str]:
        """Read to the end of the stream."""
        return list(self._lines)


@contextlib.contextmanager
def open_events(server: RunningServer) -> Iterator[Events]:
    with httpx.stream("GET", f"{server.rest}/console/events", timeout=TIMEOUT_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


def find_version(snapshot: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    (version,) = (one for one in snapshot["versions"] if one["model"] == "calculator")
    return dict(version)


def test_the_numbers_of_the_stream_agree_with_the_requests(server: RunningServer) -> None:
    with httpx.Client(base_url=server.rest, timeout=TIMEOUT_S) as client, open_events(server) as events:
        assert find_version(events.next("snapshot"))["version"] == 3
        sent = 50
        for _ in range(sent):
            assert client.post(PREDICT, json=ROWS).status_code == 200
        assert client.post(PREDICT, json={"instances": [["text", "text"]]}).status_code == 400
        # The window has passed when the rate is 0 again.
        seen = [find_version(events.next("snapshot"))]
        while seen[-1]["requests_per_s"] or not any(one["requests_per_s"] for one in seen):
            seen.append(find_version(events.next("snapshot")))
    peak = max((one for one in seen if one["requests_per_s"]), key=lambda one: float(one["requests_per_s"]))
    # The window has from about 1 to 6 seconds.
    assert sent / 7 <= peak["requests_per_s"] <= 1.5 * sent
    assert any(one["errors_per_s"] for one in seen)
    assert {code for one in seen for code in one["errors"]} == {"INVALID_ARGUMENT"}
    assert peak["batch_rows"] == pytest.approx(2.0)
    assert peak["batch_requests"] == pytest.approx(1.0)
    assert peak["padding"] == 0
    assert 0 < peak["p50_ms"] <= peak["p90_ms"] <= peak["p99_ms"]
    assert seen[-1]["p50_ms"] is None


def test_the_status_and_the_slow_requests_of_a_real_server(server: RunningServer) -> None:
    with httpx.Client(base_url=server.rest, timeout=TIMEOUT_S) as client:
        client.post(PREDICT, json=ROWS, headers={"x-request-id": "known"})
        status = client.get("/debug/status").json()
        (model,) = status["models"]
        assert (status["server"]["state"], status["may_control"]) == ("ready", True)
        assert status["server"]["addresses"] == {
            "grpc": server.grpc, "rest": server.rest.removeprefix("http://"), "grpc_socket": None, "tls": False
        }  # fmt: skip
        (version,) = model["versions"]
        assert {signature["name"] for signature in version["signatures"]} == {
            "serving_default",
            "wide",
            "add",
            "lookup",
        }
        assert version["device"] == "cpu"
        assert version["load_s"] > version["warmup_s"] > 0
        assert "max_request_bytes" in {flag["name"] for flag in status["flags"]}
        listed = client.get("/debug/slow?limit=220").json()["requests"]
        assert {"Predict"} <= {request["method"] for request in listed}
        assert client.get("/console").headers["content-type"].startswith("text/html")
        # A stream ends after its headers.
        assert client.head("/console/events").headers["content-type"] == "text/event-stream"


def test_a_page_of_another_site_cannot_unload(server: RunningServer) -> None:
    unload = "/v2/repository/models/calculator/unload"
    with httpx.Client(base_url=server.rest, timeout=TIMEOUT_S) as client:
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            response = client.post(unload, headers=headers)
            assert response.status_code == 403
            assert "a web page that this server has not sent" in response.json()["error"]
        assert client.post(PREDICT, json=ROWS).status_code == 200


def test_a_disconnect_frees_the_place(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(open_events(server))
        full = httpx.get(f"{server.rest}/console/events", timeout=TIMEOUT_S)
        assert full.status_code == 503
        assert "64 clients" in full.json()["error"]
    # The server notices the disconnects soon.
    while True:
        with httpx.stream("GET", f"{server.rest}/console/events", timeout=TIMEOUT_S) as response:
            if response.status_code == 200:
                assert Events(response).next("snapshot")["state"] == "ready"
                return


def test_a_drain_does_not_wait_for_open_consoles(calculator: Path, tmp_path: Path) -> None:
    # A drain that waited would end with status 3 after the timeout of 30 seconds.
    with (
        run_server(calculator, tmp_path / "log", model="calculator") as server,
        open_events(server) as events,
        open_events(server),
    ):
        events.next("snapshot")
        statuses: list[int] = []
        with httpx.Client(base_url=server.rest, timeout=TIMEOUT_S) as client:
            started = threading.Event()

            def work() -> None:
                with contextlib.suppress(httpx.ConnectError):
                    while True:
                        statuses.append(client.post(PREDICT, json=ROWS).status_code)
                        started.set()

            worker = threading.Thread(target=work)
            worker.start()
            assert started.wait(TIMEOUT_S)
            assert server.terminate() == 0
            worker.join(TIMEOUT_S)
        assert not worker.is_alive()
        assert set(statuses) == {200}
        assert any('"state":"draining"' in line for line in events.rest())


def test_a_server_can_do_without_console(calculator: Path, tmp_path: Path) -> None:
    with run_server(calculator, tmp_path / "log", "--enable_console=false", model="calculator") as server:
        for path in ("/console", "/console/events", "/debug/status", "/debug/slow"):
            assert httpx.get(server.rest + path, timeout=TIMEOUT_S).status_code == 404
