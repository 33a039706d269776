"""Tests for turns of servers that are up at once, with real servers, loads and processes."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness import environments
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.peers import servers
from benchmarks.peers.measurement import measured_load
from benchmarks.peers.rotation import Plan, rotate
from benchmarks.peers.servers import Subject
from benchmarks.peers.wire import ROW_REST
from tests.support.optional import needs

# Serves the MLP over ROW_REST. With WEAR, it stops to answer when it has answered that many requests.
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
import numpy as np

random = np.random.default_rng(20)
hidden = random.normal(0.0, 64**-0.5, (64, 128)).astype(np.float32)
out = random.normal(0.0, 128**-0.5, (128, 10)).astype(np.float32)
answered = count()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        x = json.loads(self.rfile.read(int(self.headers["content-length"])))["x"]
        body = json.dumps({"y": (np.maximum(np.asarray([x], np.float32) @ hidden, 0) @ out)[0].tolist()}).encode()
        self.send_response(200 if next(answered) < WEAR else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 128

Server(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def subject(name: str, wear: float, folder: Path) -> Subject:
    """Return a server with the given name, that answers that many requests."""
    program = folder / name / "server.py"
    program.parent.mkdir()
    program.write_text(SERVER.replace("WEAR", f"float('{wear}')"))
    return Subject(name, name.title(), (ROW_REST,), "none", "numpy")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setattr(servers, "PROGRAMS", folder)
    monkeypatch.setattr(environments, "python", lambda name: Path(sys.executable))
    monkeypatch.setattr(environments, "pinned", lambda name, package: "1.2")
    return folder


@needs("wrk")
@pytest.mark.slow
def test_servers_that_are_up_at_once_take_turns(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []

    def noted(serving: servers.Serving, *arguments: object) -> object:
        order.append(serving.subject.name)
        return measured_load(serving, *arguments)  # type: ignore[arg-type]  # the arguments of the call

    monkeypatch.setattr("benchmarks.peers.rotation.measured_load", noted)
    subjects = [subject(name, float("inf"), programs) for name in ("first", "second")]
    found, turns = rotate(subjects, tmp_path, Plan(1, 1, (2,)), tmp_path, lambda what: None)
    assert [(server.name, server.version) for server in found] == [("first", "1.2"), ("second", "1.2")]
    assert all(server.memory.rss_mb > 1 for server in found)
    # The first round warms up.
    assert order == ["first", "second", "second", "first"]
    assert [(each.name, *each.case) for each in turns] == [
        ("second", ROW_REST.name, 2),
        ("first", ROW_REST.name, 2),
    ]
    assert all(len(each.loads) == len(each.cpu_us) == 1 and each.cpu_us[0] > 0 for each in turns)


@needs("wrk")
@pytest.mark.slow
def test_failed_requests_end_the_measurement(programs: Path, tmp_path: Path) -> None:
    # Readiness and the check of the outputs take 64 requests each.
    worn = subject("worn", 130, programs)
    with pytest.raises(WrongAnswer, match=r"Worn, HTTP, JSON: \d+ of \d+ requests failed"):
        rotate([worn], tmp_path, Plan(1, 1, (1,)), tmp_path, lambda what: None)
