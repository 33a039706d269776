"""Tests for the routes of the console, called through ASGI like by a host."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.access import KeyFile
from tests.support.console_house import ConsoleHouse
from tests.support.fakes import FakeClock, FakeMetrics
from tests.support.stuck_gauge import StuckGauge
from tpuserve_formats.version_reports import REPORTS_FOLDER
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.access.options import IdentityOptions
from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.protocols.console.console import Console
from tpuserve_server.protocols.console.documents import describe_status
from tpuserve_server.protocols.console.event_feed import describe_snapshot
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.options import ControlOptions
from tpuserve_server.protocols.rest import RestApp, RestOptions, rest_app
from tpuserve_server.storage.named_file import read_file

# Chromium's header of a page that a person opens.
BROWSER_ACCEPTS = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


def app_of(house: ConsoleHouse) -> RestApp:
    control = Control(ControlOptions())
    console = Console(house.sources, control)
    return rest_app(
        house.service, house.metrics, house.clock, lambda: ([b""], ""), RestOptions(), control=control, console=console
    )


def client_of(app: RestApp, address: str = "127.0.0.1", host: str = "localhost:8501") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 5)), base_url=f"http://{host}")


@pytest.fixture
async def client(house: ConsoleHouse) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app_of(house)) as made:
        yield made


def error_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    return str(response.json()["error"])


def test_a_step_of_the_time_of_day_does_not_change_the_uptime(
    house: ConsoleHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = dataclasses.replace(house.sources.facts, started_s=1000.0)
    sources = dataclasses.replace(house.sources, clock=FakeClock(1060.0), facts=facts)
    monkeypatch.setattr("time.time", lambda: facts.started_unix_s - 1e8)
    server = describe_status(sources, may_control=True)["server"]
    assert (server["uptime_s"], server["configuration_sha256"]) == (60.0, "")
    assert describe_snapshot(sources, house.sources.figures.open_window())["uptime_s"] == 60.0


async def test_the_status_describes_the_server_and_its_models(client: httpx.AsyncClient, house: ConsoleHouse) -> None:
    house.registry.assign_labels("m", {"stable": 3})
    await house.predict(rows=2)
    response = await client.get("/debug/status")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    status = response.json()
    assert (status["server"]["state"], status["server"]["reason"], status["may_control"]) == ("ready", "", True)
    assert status["build"] == {"numpy": "2"}
    assert status["in_flight"] == {"rest": 0}
    assert status["flags"] == [{"name": "model_base_path", "value": "/secret/m", "default": None}]
    assert [budget["limit_bytes"] for budget in status["budgets"]] == [16000, 2 << 30, 4000, 1 << 30]
    (model,) = status["models"]
    (version,) = model.pop("versions")
    assert model == {"name": "m", "ready": True, "reason": "", "labels": {"stable": 3}, "kind": "model"}
    (signature,) = version.pop("signatures")
    assert version == {
        "version": 3, "state": "AVAILABLE", "code": "OK", "reason": "", "device": "cpu", "fallback": "no_programs",
        "load_s": 1.5, "warmup_s": 0.5, "warmup_records": 2, "class_labels": 2, "evaluation": None, "cache": None,
        "reports": [],
    }  # fmt: skip
    assert signature["inputs"] == [{"name": "x", "dtype": "DT_FLOAT", "shape": [None, 2]}]
    assert signature["batching"] == {
        "max_batch_size": 4, "batch_sizes": [1, 2, 4], "timeout_ms": 0.0, "objective_ms": None,
        "queued_requests": 0, "queued_rows": 0,
    }  # fmt: skip
    assert [cost["bucket"] for cost in signature["costs"]] == [2]


async def test_the_status_has_the_state_of_the_credentials(
    client: httpx.AsyncClient, house: ConsoleHouse, tmp_path: Path
) -> None:
    assert (await client.get("/debug/status")).json()["access"] is None
    keys = KeyFile(tmp_path / "credentials")
    keys.add("alice", "read")
    files = CredentialFiles(IdentityOptions(keys.path, anonymous_roles=("read", "predict")), read_file)
    house.sources = dataclasses.replace(house.sources, credentials=files)
    keys.path.write_text("alice read\n")
    files.poll()
    async with client_of(app_of(house)) as other:
        access = (await other.get("/debug/status")).json()["access"]
    assert access == {
        "api_keys": 1,
        "certificates": 0,
        "tokens": False,
        "anonymous_roles": ["predict", "read"],
        "problem": files.problem,
    }
    assert files.problem.startswith("credentials_file: line 1: 2 words")


async def test_the_status_of_a_model_without_versions(tmp_path: Path) -> None:
    house = ConsoleHouse(tmp_path)
    async with client_of(app_of(house)) as client:
        status = (await client.get("/debug/status")).json()
    house.stop()
    assert status["server"]["state"] == "starting"
    assert status["models"] == [
        {"name": "m", "ready": False, "reason": "", "labels": {}, "kind": "model", "versions": []}
    ]


async def test_clients_that_wait_for_the_status_share_it(client: httpx.AsyncClient, house: ConsoleHouse) -> None:
    gauge = StuckGauge()
    house.metrics.devices.devices_opened(gauges=[gauge])
    first = asyncio.create_task(client.get("/debug/status"))
    await asyncio.to_thread(gauge.asked.wait)
    # The status under way may lack what has just changed.
    house.registry.assign_labels("m", {"stable": 3})
    others = [asyncio.create_task(client.get("/debug/status")) for _ in range(20)]
    # An answer that needs no worker thread proves that the others wait.
    await client.get("/debug/slow")
    gauge.gate.set()
    assert (await first).status_code == 200
    found = {response.text for response in await asyncio.gather(*others)}
    assert [json.loads(text)["models"][0]["labels"] for text in found] == [{"stable": 3}]
    assert gauge.reads == 2


@pytest.mark.parametrize(
    ("address", "host"), [("10.1.2.3", "localhost"), ("127.0.0.1", "evil.example"), ("127.0.0.1", "evil.example:8501")]
)
async def test_only_clients_that_may_control_see_the_values_of_flags(
    house: ConsoleHouse, address: str, host: str
) -> None:
    async with client_of(app_of(house), address, host) as client:
        response = await client.get("/debug/status")
    assert response.json()["flags"] == [{"name": "model_base_path"}]
    assert response.json()["may_control"] is False
    assert "/secret" not in response.text


async def test_the_status_has_the_certificates_without_paths_for_others(
    house: ConsoleHouse, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/debug/status")).json()["server"]["certificates"] is None
    house.certificates = CertificateStatus({"server": 2e9}, "SSLConfig '/secret': server_cert expired.")
    status = (await client.get("/debug/status")).json()
    assert status["server"]["certificates"] == {
        "expires_unix_s": {"server": 2e9},
        "reload_failed": True,
        "reload_failure": "SSLConfig '/secret': server_cert expired.",
    }
    async with client_of(app_of(house), "10.1.2.3") as other:
        text = (await other.get("/debug/status")).text
    assert json.loads(text)["server"]["certificates"] == {"expires_unix_s": {"server": 2e9}, "reload_failed": True}
    assert "/secret" not in text


async def test_the_status_has_the_addresses_that_the_host_has_announced(
    client: httpx.AsyncClient, house: ConsoleHouse
) -> None:
    before = (await client.get("/debug/status")).json()["server"]["addresses"]
    assert before == {"grpc": None, "rest": None, "grpc_socket": None, "tls": False}
    house.addresses.announce(grpc="0.0.0.0:8500", rest="0.0.0.0:8501", grpc_socket="unix:/secret/s", tls=True)
    status = (await client.get("/debug/status")).json()
    assert status["server"]["addresses"] == {
        "grpc": "0.0.0.0:8500", "rest": "0.0.0.0:8501", "grpc_socket": "unix:/secret/s", "tls": True
    }  # fmt: skip
    async with client_of(app_of(house), "10.1.2.3") as other:
        addresses = (await other.get("/debug/status")).json()["server"]["addresses"]
    assert (addresses["grpc"], addresses["grpc_socket"]) == ("0.0.0.0:8500", None)


async def test_slow_requests_are_listed_with_their_stages(client: httpx.AsyncClient, house: ConsoleHouse) -> None:
    for latency_s in (1.0, 3.0, 2.0):
        house.be_slow(latency_s, request_id="order-7")
    document = (await client.get("/debug/slow?limit=2")).json()
    assert document["window_s"] == 600
    assert [round(request["latency_ms"]) for request in document["requests"]] == [3000, 2000]
    first = document["requests"][0]
    assert first["ended"] == "2001-09-09T01:46:40.000Z"
    assert first["request_id"] == "order-7"
    assert [stage["name"] for stage in first["stages"]] == ["decode"]


@pytest.mark.parametrize("limit", ["0", "221", "-1", "x", "", "1" * 5000, "\u0663"])
async def test_a_wrong_limit_is_refused(client: httpx.AsyncClient, limit: str) -> None:
    response = await client.get("/debug/slow", params={"limit": limit})
    assert response.status_code == 400
    assert error_of(response).startswith("limit must be a number from 1 to 220, got ")
    assert len(response.text) < 200


@pytest.mark.parametrize("path", ["/console", "/console/static/index.html"])
async def test_the_page_allows_nothing_from_elsewhere(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["referrer-policy"] == "no-referrer"
    again = await client.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/", "/console/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_browser_is_led_to_the_page(client: httpx.AsyncClient, method: str, path: str) -> None:
    response = await client.request(method, path, headers={"accept": BROWSER_ACCEPTS})
    assert response.status_code == 307
    # Relative: a proxy may serve the server under a prefix.
    assert not response.headers["location"].startswith(("/", "http"))
    assert response.next_request is not None
    assert response.next_request.url == "http://localhost:8501/console"


@pytest.mark.parametrize(
    ("method", "accept"),
    [
        ("GET", ""),
        ("GET", "*/*"),
        ("GET", "application/json, text/plain, */*"),
        ("GET", "application/json, text/html;q=0.9"),
        ("GET", "text/html;q=0"),
        ("GET", "text/html;q=x"),
    ],
)
async def test_the_root_is_a_probe_to_clients_that_are_no_browsers(
    client: httpx.AsyncClient, method: str, accept: str
) -> None:
    response = await client.request(method, "/", headers={"accept": accept})
    found = response.json()
    assert (response.status_code, found["status"], found["paths"]["console"]) == (200, "alive", "/console")


@pytest.mark.parametrize("method", ["POST", "PURGE"])
async def test_the_root_is_unknown_to_other_methods(client: httpx.AsyncClient, method: str) -> None:
    response = await client.request(method, "/", headers={"accept": BROWSER_ACCEPTS})
    assert (response.status_code, error_of(response)) == (404, "Not Found")


async def test_head_has_the_headers_of_the_page(client: httpx.AsyncClient) -> None:
    assert (await client.head("/console")).headers == (await client.get("/console")).headers


@pytest.mark.parametrize("name", ["none.js", "../console.py", "..%2Fconsole.py", "%2e%2e/console.py", "", "page"])
async def test_other_files_are_unknown(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(f"/console/static/{name}")
    assert (response.status_code, error_of(response)) == (404, "Not Found")


async def test_class_names_are_listed(client: httpx.AsyncClient) -> None:
    assert (await client.get("/console/labels/m/3")).json() == {"labels": ["cat", "dog"]}


@pytest.mark.parametrize("version", ["4", "x", "-3", "9" * 5000])
async def test_class_names_of_an_unknown_version(client: httpx.AsyncClient, version: str) -> None:
    response = await client.get(f"/console/labels/m/{version}")
    assert response.status_code == 404
    assert error_of(response).startswith("Model 'm' has no version ")


async def test_reports_run_without_the_servers_origin_and_network(client: httpx.AsyncClient, tmp_path: Path) -> None:
    folder = tmp_path / "m" / "3" / REPORTS_FOLDER
    folder.mkdir(parents=True)
    (folder / "export.html").write_text("<p>export</p>")
    (report,) = (await client.get("/debug/status")).json()["models"][0]["versions"][0]["reports"]
    response = await client.get(report["href"])
    assert response.text == "<p>export</p>"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy
    missing = await client.get("/console/reports/m/3/none.html")
    assert (missing.status_code, error_of(missing)) == (404, "Version 3 of model 'm' has no report 'none.html'")


async def test_pages_of_other_sites_cannot_take_places_of_the_stream(client: httpx.AsyncClient) -> None:
    response = await client.get("/console/events", headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 403


async def test_a_server_that_drains_refuses_the_stream(client: httpx.AsyncClient, house: ConsoleHouse) -> None:
    house.service.drain()
    response = await client.get("/console/events")
    assert (response.status_code, error_of(response)) == (503, "The server is shutting down")


async def test_a_server_without_console_knows_none_of_its_paths(house: ConsoleHouse) -> None:
    app = rest_app(house.service, FakeMetrics(), house.clock, lambda: ([b""], ""), RestOptions())
    async with client_of(app) as client:
        for path in ("/console/", "/console", "/console/events", "/debug/status", "/debug/slow"):
            assert (await client.get(path, headers={"accept": BROWSER_ACCEPTS})).status_code == 404


async def test_the_openapi_document_has_the_json_routes(client: httpx.AsyncClient) -> None:
    document: Any = (await client.get("/openapi.json")).json()
    listed = {path for path in document["paths"] if path.startswith(("/debug", "/console"))}
    assert listed == {"/debug/status", "/debug/slow"}
