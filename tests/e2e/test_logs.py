"""Tests of the log of a real server: every line of JSON, and a stderr without a reader."""

import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.running_server import EXECUTABLE, START_TIMEOUT_S, STOP_TIMEOUT_S
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, TpuserveError

pytestmark = [pytest.mark.slow]

_PATIENCE_S = 60.0
PREDICT = "/v1/models/m:predict"
BODY = {"instances": [[0.5] * 64]}


class JsonLog:
    """Reads the stderr of a server on a thread, and parses every line."""

    def __init__(self, descriptor: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.others: list[str] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(descriptor,))
        self._thread.start()

    def wait_for(self, text: str) -> dict[str, Any]:
        """Return the first event whose line contains `text`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._find(text) is not None, _PATIENCE_S), self.events
            found = self._find(text)
            assert found is not None
            return found

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)

    def _find(self, text: str) -> dict[str, Any] | None:
        return next((event for event in self.events if text in json.dumps(event)), None)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                with self._changed:
                    try:
                        self.events.append(json.loads(line))
                    except ValueError:
                        self.others.append(line)
                    self._changed.notify_all()


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    version = save_mlp(tmp_path_factory.mktemp("mlp") / "1", seed=1)
    write_manifest(version)
    return version.parent


class Server:
    """A server process, and its addresses."""

    def __init__(self, process: subprocess.Popen[bytes], grpc_port: int, rest_port: int) -> None:
        self.process = process
        self.grpc = f"127.0.0.1:{grpc_port}"
        self.rest = f"http://127.0.0.1:{rest_port}"

    def post(self, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.rest}{PREDICT}", json=BODY, headers=named, timeout=60)

    def wait_until_ready(self) -> None:
        with Client(self.grpc) as client:
            client.wait_until_ready(START_TIMEOUT_S, "m")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def started(base_path: Path, stderr: int, *flags: str) -> Iterator[Server]:
    ports = free_ports(2)
    command = [
        str(EXECUTABLE), f"--port={ports[0]}", f"--rest_api_port={ports[1]}", "--bind_address=127.0.0.1",
        "--model_name=m", f"--model_base_path={base_path}", *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    os.close(stderr)
    try:
        yield Server(process, ports[0], ports[1])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_every_line_is_json_from_the_start_to_the_end(base_path: Path) -> None:
    reader, writer = os.pipe()
    log = JsonLog(reader)
    with started(base_path, writer, "--log_format=json", "--access_log=all", "--grpc_max_threads=2") as server:
        server.wait_until_ready()
        assert server.post(x_request_id="mine").headers["x-request-id"] == "mine"
        line = log.wait_for('"request_id": "mine"')
        assert (line["logger"], line["model"], line["code"]) == ("tpuserve.access", "m", "OK")
        assert {"queue", "execute"} <= line["stages_ms"].keys()
        httpx.post(f"{server.rest}/v1/models/a%0Ab:predict", json=BODY, timeout=60)
        assert log.wait_for('"code": "NOT_FOUND"')["error"] == "Servable not found for request: Latest(a\nb)"
        with Client(server.grpc) as client, pytest.raises(TpuserveError):
            client.predict("nosuch", {"x": [1.0]})
        log.wait_for('"protocol": "grpc"')
        server.process.send_signal(signal.SIGHUP)
        log.wait_for("Nothing to read again")
        [serving] = psutil.Process(server.process.pid).children()
        serving.send_signal(signal.SIGSEGV)
        log.wait_for("Fatal Python error: Segmentation fault")
        log.wait_for("The serving process ended by itself (signal SIGSEGV)")
        server.wait_until_ready()
        assert server.stop() == 0
    log.join()
    assert log.others == []
    assert all({"time", "level", "logger", "thread", "message"} <= event.keys() for event in log.events)
    assert log.events[0]["message"].startswith("--grpc_max_threads has no effect.")
    assert log.events[-1]["message"].startswith("Unloaded ")


def test_a_server_that_cannot_start_says_why_in_json(base_path: Path, tmp_path: Path) -> None:
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text("nothing { }")
    reader, writer = os.pipe()
    log = JsonLog(reader)
    flags = ("--log_format=json", f"--monitoring_config_file={monitoring}", "--grpc_max_threads=2")
    with started(base_path, writer, *flags) as server:
        assert server.process.wait(STOP_TIMEOUT_S) == 1
    log.join()
    assert log.others == []
    notice, error = log.events
    assert (notice["level"], error["level"]) == ("WARNING", "ERROR")
    assert error["logger"] == "tpuserve"
    assert "tensorflow.serving.MonitoringConfig" in error["message"]


def test_a_stderr_that_nobody_reads_stops_no_request_and_no_drain(base_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with started(base_path, writer, "--access_log=all") as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.rest, timeout=60) as client:
            # More lines than the pipe and the queue hold.
            for _ in range(5000):
                assert client.get("/v1/models/m").status_code == 200
            assert client.post(PREDICT, json=BODY).status_code == 200
        assert server.stop() == 0
    os.close(reader)
