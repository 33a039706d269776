"""Tests of the health check against servers of HTTP, which announce themselves as the supervisor does."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from tpuserve_server.core.system.runtime_folder import RuntimeFolder, runtime_folder
from tpuserve_server.hosts.announcement import Announcement
from tpuserve_server.hosts.health_check import check_health

PROGRAM = Path(sys.executable).with_name("tpuserve-health")


class Readiness(BaseHTTPRequestHandler):
    """Answers /readyz with 503 and a reason, and /healthz with 200."""

    def do_GET(self) -> None:
        body = json.dumps({"ready": False, "reason": "loading: m"}).encode()
        self.send_response({"/readyz": 503, "/healthz": 200}.get(self.path, 404))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(server: HTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, name="readiness")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def folder() -> Iterator[RuntimeFolder]:
    with runtime_folder() as folder:
        yield folder


# A process id that no other server on this machine has: the highest of Linux is 2 ** 22.
PID = 2**22 + os.getpid()


def announce(folder: RuntimeFolder, rest: str | None, *, grpc: str | None = None, tls: bool = False) -> None:
    Announcement(PID, grpc, rest, None, tls).write(folder.path)


def test_the_check_says_what_the_routes_say(folder: RuntimeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with served(HTTPServer(("127.0.0.1", 0), Readiness)) as port:
        announce(folder, f"0.0.0.0:{port}")
        assert check_health("/readyz", PID) == 1
        assert capsys.readouterr().err == f"127.0.0.1:{port}/readyz: 503: loading: m\n"
        assert check_health("/healthz", PID) == 0
        # Without REST, the port of gRPC has the same routes.
        announce(folder, None, grpc=f"127.0.0.1:{port}")
        assert check_health("/healthz", PID) == 0
        assert capsys.readouterr().out == f"127.0.0.1:{port}/healthz: 200\n" * 2


def test_tls_needs_no_authority(folder: RuntimeFolder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("models.example").configure_cert(context)
    server = HTTPServer(("127.0.0.1", 0), Readiness)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with served(server) as port:
        announce(folder, f"127.0.0.1:{port}", tls=True)
        assert check_health("/healthz", PID) == 0


def test_a_server_that_does_not_answer_is_unhealthy(folder: RuntimeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    announce(folder, f"127.0.0.1:{port}")
    assert check_health("/readyz", PID) == 1
    assert "no response: [Errno 111] Connection refused" in capsys.readouterr().err


def test_a_server_that_has_ended_is_not_found(folder: RuntimeFolder, capsys: pytest.CaptureFixture[str]) -> None:
    announce(folder, "127.0.0.1:1")
    os.close(folder.lock)  # As the end of the last process of the server does.
    assert check_health("/readyz", PID) == 1
    assert capsys.readouterr().err == f"No server with the process id {PID} has opened its ports.\n"
    os.dup2(os.open(os.devnull, os.O_RDONLY), folder.lock)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"later": 1}'])
def test_the_announcement_of_another_release_is_ignored(
    text: str, folder: RuntimeFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.path / "announcement.json").write_text(text)
    assert check_health("/readyz", PID) == 1
    assert capsys.readouterr().err == f"No server with the process id {PID} has opened its ports.\n"


def test_several_servers_need_a_process_id(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    servers = [Announcement(pid, None, "127.0.0.1:1", None, tls=False) for pid in (8, 7)]
    monkeypatch.setattr(Announcement, "all", lambda: iter(servers))
    assert check_health() == 2
    assert capsys.readouterr().err == "Several servers run, with the process ids 7, 8. Set --pid.\n"


def test_the_program_reads_its_options(folder: RuntimeFolder) -> None:
    with served(HTTPServer(("127.0.0.1", 0), Readiness)) as port:
        announce(folder, f"127.0.0.1:{port}")
        # The check ignores settings of proxies.
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
        codes = [
            subprocess.run([PROGRAM, f"--pid={PID}", *options], env=environment, check=False, timeout=60).returncode
            for options in ([], ["--live"])
        ]
    assert codes == [1, 0]


def test_the_check_imports_neither_click_nor_ssl_nor_the_server(folder: RuntimeFolder) -> None:
    # Not any server of this machine: one with TLS needs ssl.
    code = (
        f"import sys, tpuserve_server.startup.health as h; h.check_health('/healthz', {PID});"
        "print({'click', 'ssl', 'http.client', 'asyncio', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    with served(HTTPServer(("127.0.0.1", 0), Readiness)) as port:
        announce(folder, f"127.0.0.1:{port}")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    address, imported = done.stdout.splitlines()
    assert address == f"127.0.0.1:{port}/healthz: 200"
    assert imported == "set()"
