"""Tests for the metrics page of a real server: formats, figures of the server, clients that never read."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.e2e.running_server import RunningServer, run_server
from tests.e2e.test_rest_transport import resident_bytes
from tpuserve_client import Client
from tpuserve_server.hosts.channel import LOST_REQUESTS

OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
PREDICT = "/v1/models/calculator:predict"
# Clients that never read, and the requests that each sends ahead.
SILENT, AHEAD = 8, 200


def predict(server: RunningServer) -> None:
    answer = httpx.post(f"{server.rest}{PREDICT}", content=b'{"instances": [[1, 2]]}', timeout=60)
    assert answer.json() == {"predictions": [[2.0, 4.0]]}


def scrape(server: RunningServer, path: str = "/metrics", accept: str = "") -> httpx.Response:
    answer = httpx.get(f"{server.rest}{path}", headers={"accept": accept}, timeout=60)
    assert answer.status_code == 200
    return answer


def samples(server: RunningServer) -> list[Sample]:
    answer = scrape(server, accept=OPEN_METRICS)
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]  # prometheus_client's
    return [sample for family in families for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    [one] = [each.value for each in found if each.name == name and labels.items() <= each.labels.items()]
    return one


def test_both_formats_have_the_same_series(server: RunningServer) -> None:
    predict(server)
    text = scrape(server)
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    shown = {line.partition("{")[0].partition(" ")[0] for line in text.text.splitlines() if line and line[0] != "#"}
    assert shown == {sample.name for sample in samples(server)}
    assert {"tpuserve_requests_total", ":tensorflow:serving:request_count", "process_cpu_seconds_total"} <= shown


def test_the_page_comes_in_parts_and_compressed_for_clients_that_accept_it(server: RunningServer) -> None:
    predict(server)
    for accept, coding in (("identity", None), ("gzip", "gzip")):
        answer = httpx.get(f"{server.rest}/metrics", headers={"accept-encoding": accept}, timeout=60)
        assert answer.headers.get("content-encoding") == coding
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["vary"] == "accept, accept-encoding"
        assert "tpuserve_requests_total{" in answer.text


def test_the_page_describes_the_server(server: RunningServer) -> None:
    with Client(server.grpc) as client:
        client.predict("calculator", {"x": np.ones((1, 2), np.float32)})
    predict(server)
    found = samples(server)
    version = {"model_name": "calculator", "version": "3"}
    states = {each.labels["state"] for each in found if each.name == "tpuserve_server_state" and each.value}
    assert states == {"ready"}
    assert value(found, "tpuserve_requests_in_flight", protocol="grpc") == 0
    assert value(found, "tpuserve_queue_requests", **version) == 0
    assert value(found, "tpuserve_version_load_seconds", **version) > 0
    assert value(found, "tpuserve_version_loads_total", model_name="calculator", outcome="loaded") == 1
    assert value(found, "tpuserve_version_busy_seconds_total", **version) > 0
    assert value(found, "tpuserve_budget_bytes", budget="receiving", kind="limit") == 16 * 4_000_000
    for protocol in ("grpc", "rest"):
        labels = {"protocol": protocol, "model_name": "calculator"}
        assert value(found, "tpuserve_request_stage_requests_total", **labels) >= 1
        for stage in ("decode", "queue", "execute", "encode"):
            assert value(found, "tpuserve_request_stage_seconds_total", stage=stage, **labels) > 0


@contextlib.contextmanager
def silent_scrapers(server: RunningServer) -> Iterator[None]:
    """Open connections that request many pages and read none."""
    parts = urlsplit(server.rest)
    request = f"GET /metrics HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode() * AHEAD
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((parts.hostname, parts.port))
            connection.sendall(request)
        yield


def test_scrapers_that_never_read_hold_little_memory_and_no_drain(calculator: Path, tmp_path: Path) -> None:
    flags = ("--max_request_bytes=1000000", "--drain_timeout_seconds=1")
    with run_server(calculator, tmp_path / "log", *flags, model="calculator") as server:
        predict(server)
        page_bytes = len(scrape(server).content)
        before_bytes = resident_bytes(server.process.pid)
        with silent_scrapers(server):
            # A page is for all clients that wait for it. After as many pages as the silent clients want, each has got
            # all of its pages, or the server waits for it to read.
            with httpx.Client(base_url=server.rest) as client:
                for _ in range(AHEAD):
                    assert client.get("/metrics").status_code == 200
            predict(server)
            grown_bytes = resident_bytes(server.process.pid) - before_bytes
            assert grown_bytes < SILENT * AHEAD * page_bytes / 4
            # The server cuts their responses after the drain timeout.
            assert server.terminate() in (0, LOST_REQUESTS)
