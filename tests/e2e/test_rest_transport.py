"""Tests for REST transport with curl: gzip, CORS, unusual methods and names, tiny chunks."""

import gzip
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from tests.e2e.running_server import RunningServer
from tests.support.optional import needs

pytestmark = [needs("curl")]
PREDICT = "/v1/models/calculator:predict"
# The server's --max_request_bytes.
LIMIT = 4_000_000


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        document = json.loads(self.body)
        assert document.keys() == {"error"}
        return str(document["error"])


def curl(server: RunningServer, path: str, *arguments: str, body: bytes | None = None) -> Answer:
    data = () if body is None else ("--data-binary", "@-")
    command = ["curl", "--silent", "--include", "--max-time", "60", "-H", "Expect:", *data, *arguments]
    run = subprocess.run([*command, server.rest + path], input=body, capture_output=True, check=True, timeout=90)
    head, _, content = run.stdout.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    pairs = (header.split(": ", 1) for header in headers)
    return Answer(int(status.split()[1]), {name.lower(): value for name, value in pairs}, content)


def check_serves(server: RunningServer) -> None:
    answer = curl(server, PREDICT, body=b'{"instances": [[1, 2]]}')
    assert (answer.status, json.loads(answer.body)) == (200, {"predictions": [[2.0, 4.0]]})


def rows(count: int) -> bytes:
    return json.dumps({"instances": np.arange(2 * count).reshape(count, 2).tolist()}).encode()


def test_gzip_in_both_directions(server: RunningServer) -> None:
    body = json.dumps({"signature_name": "wide", "instances": [[0.1] * 800] * 8})
    answer = curl(
        server,
        PREDICT,
        "-H",
        "Content-Encoding: gzip",
        "-H",
        "Accept-Encoding: gzip",
        body=gzip.compress(body.encode()),
    )
    assert (answer.status, answer.headers["content-encoding"]) == (200, "gzip")
    assert answer.headers["vary"].lower() == "accept-encoding"
    first, *_ = json.loads(gzip.decompress(answer.body))["predictions"]
    np.testing.assert_allclose(first, [0.2] * 800, rtol=1e-6)
    plain = curl(server, PREDICT, body=body.encode())
    assert "content-encoding" not in plain.headers
    assert json.loads(plain.body)["predictions"][0] == first


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children, in bytes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident_bytes(int(child)) for child in children)


def test_a_gzip_bomb_is_refused_and_takes_no_memory(server: RunningServer) -> None:
    bomb = gzip.compress(bytes(1 << 30), 1)
    before = resident_bytes(server.process.pid)
    for _ in range(3):
        answer = curl(server, PREDICT, "-H", "Content-Encoding: gzip", body=bomb)
        assert (answer.status, answer.error) == (413, f"Request body is larger than the limit of {LIMIT} bytes")
    assert resident_bytes(server.process.pid) - before < 64 << 20
    check_serves(server)


@pytest.mark.parametrize(
    ("encoding", "body", "status", "error"),
    [
        ("br", b"x", 415, "Content-Encoding br is not supported; use gzip or deflate"),
        ("gzip", b'{"instances": [[1, 2]]}', 400, "Failed to uncompress the gzipped body"),
        ("gzip", gzip.compress(b'{"instances": [[1, 2]]}')[:-3], 400, "Failed to uncompress the gzipped body"),
    ],
    # Explicit IDs: gzip embeds the time, and pytest-xdist fails if the IDs of two processes differ.
    ids=["foreign", "plain", "cut short"],
)
def test_broken_and_foreign_encodings(
    server: RunningServer, encoding: str, body: bytes, status: int, error: str
) -> None:
    answer = curl(server, PREDICT, "-H", f"Content-Encoding: {encoding}", body=body)
    assert (answer.status, answer.error) == (status, error)
    check_serves(server)


def test_preflight_and_cross_origin_requests(server: RunningServer) -> None:
    # The preflight request, and the request that follows it.
    requested = curl(server, PREDICT, "-X", "OPTIONS", "-H", "Origin: http://a.example")
    served = curl(server, PREDICT, "-H", "Origin: http://a.example", body=b'{"instances": [[1, 2]]}')
    refused = curl(server, PREDICT, "-X", "OPTIONS")
    assert [requested.status, served.status, refused.status] == [200, 200, 400]
    assert requested.body == b""
    assert refused.error == "Origin header is missing in CORS preflight"
    for answer in (requested, served, refused):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "POST, GET"
        assert "x-tpuserve-timeout-ms" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "GET"])
def test_other_methods_are_malformed(server: RunningServer, method: str) -> None:
    answer = curl(server, PREDICT, "-X", method)
    assert (answer.status, answer.error) == (400, f"Malformed request: {method} {PREDICT}")


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_head_of_both_versions_has_no_body(server: RunningServer, version: str) -> None:
    get, head = (curl(server, "/v1/models/calculator", version, *more) for more in ((), ("--head",)))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))


def test_a_client_that_closes_its_sending_side_gets_its_response(server: RunningServer) -> None:
    url = urlsplit(server.rest)
    with socket.create_connection((url.hostname, url.port), timeout=60) as client:
        client.sendall(b"GET /v1/models/calculator HTTP/1.1\r\nhost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["model_version_status"]


@pytest.mark.parametrize(
    "name",
    [
        "../../../../etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..",
        "%2e%2e",
        "a%00b",
        "%00",
        "",
        "%",
        "%zz",
        "%ff",
        "a" * 10_000,
        "%61" * 3_000,
    ],
)
def test_strange_names_are_not_found_or_malformed(server: RunningServer, name: str) -> None:
    answer = curl(server, f"/v1/models/{name}:predict", "--path-as-is", body=b'{"instances": [[1, 2]]}')
    assert answer.status in (400, 404), answer.body[:300]
    assert b"root:" not in answer.body
    status = curl(server, f"/v1/models/{name}", "--path-as-is")
    assert status.status in (200, 400, 404) if name in ("", "..", "%2e%2e") else status.status in (400, 404)
    check_serves(server)


def test_a_body_in_crumbs_takes_no_memory(server: RunningServer) -> None:
    # Send 80,000 chunks of one byte. A server may merge several chunks before the application reads them.
    address = urlsplit(server.rest)
    assert address.hostname is not None
    before = resident_bytes(server.process.pid)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    crumbs = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"instances": [[1, 2]]}' + b" " * 80_000)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(head.encode() + crumbs + b"0\r\n\r\n")
        with connection.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
    assert status in (200, 400)
    assert resident_bytes(server.process.pid) - before < 64 << 20
    check_serves(server)


def test_an_image_of_three_megabytes_is_answered(server: RunningServer) -> None:
    numbers = np.random.default_rng(0).random((8, 2), np.float32)
    body = json.dumps({"instances": numbers.tolist()}).encode() + b" " * 3_000_000
    answer = httpx.post(server.rest + PREDICT, content=body, timeout=60)
    np.testing.assert_array_equal(np.array(answer.json()["predictions"], np.float32), numbers * 2)
