"""Tests for the suites under plain Locust, with its command line and its web page."""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.doubling_server import MODEL, QUEUE_FULL, Doubling, serving
from tests.support.free_ports import free_ports

LOCUST = str(Path(sys.executable).with_name("locust"))
LOCUSTFILES = Path(__file__).resolve().parents[2] / "loadtests" / "locustfiles"
# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ("--generator-limit", "note")


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def headless(name: str, server: Doubling, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run until the server has received a hundred more requests or the run ends."""
    command = [LOCUST, "-f", str(LOCUSTFILES / name), "--headless", "-u", "4", "-r", "4", "--only-summary"]
    command += [*BUSY_IS_FINE, *arguments]
    enough = len(server.rows) + 100
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and len(server.rows) < enough:
                time.sleep(0.05)
            process.terminate()
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def requests_in(table: str) -> dict[str, int]:
    """Return the requests of each line of the printed table."""
    rows = [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if line.startswith("│")]
    return {row[1]: int(row[2].replace(",", "")) for row in rows}


@pytest.mark.parametrize(
    ("name", "lines"), [("over_grpc.py", ["gRPC"]), ("over_rest.py", ["REST"]), ("mixed.py", ["gRPC", "REST"])]
)
def test_each_locustfile_runs_by_itself(server: Doubling, name: str, lines: list[str]) -> None:
    addresses = [*(["--grpc", server.grpc_address] if "gRPC" in lines else [])]
    addresses += ["--rest", server.rest_url] if "REST" in lines else []
    run = headless(name, server, "--model", MODEL, *addresses, "--rows", "3")
    assert run.returncode == 0, run.stderr
    counted = requests_in(run.stdout)
    assert list(counted) == [*lines, "total"]
    # Locust kills in-flight requests at its end: the server may have received one more per user.
    assert 0 <= len(server.rows) - counted["total"] <= 4
    assert set(server.rows) == {3}
    assert "p99 ms" in run.stdout


def test_processes_of_locust_are_counted_together(server: Doubling) -> None:
    run = headless("over_grpc.py", server, "--model", MODEL, "--grpc", server.grpc_address, "--processes", "2")
    assert run.returncode == 0, run.stderr
    assert 0 <= len(server.rows) - requests_in(run.stdout)["total"] <= 4


def test_a_scenarios_models_get_their_shares(server: Doubling, tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    parts = f"[{{model: {MODEL}, name: small, weight: 3}}, {{model: {MODEL}, name: large, rows: 2, protocol: grpc}}]"
    path.write_text(f"grpc: {server.grpc_address}\nrest: {server.rest_url}\nmodels: {parts}\nfail_if: rate<1")
    run = headless("mixed.py", server, "--scenario", str(path))
    assert run.returncode == 0, run.stderr
    counted = requests_in(run.stdout)
    assert list(counted) == ["small gRPC", "small REST", "large gRPC", "total"]
    assert counted["large gRPC"] / counted["total"] == pytest.approx(0.25, abs=0.1)
    assert "rate<1: passed" in run.stdout


def test_failures_are_exit_code_1_and_a_failed_gate_99(server: Doubling) -> None:
    server.fail_every = 2
    run = headless("over_grpc.py", server, "--model", MODEL, "--grpc", server.grpc_address)
    assert run.returncode == 1
    assert QUEUE_FULL in run.stderr  # in Locust's own error report
    server.fail_every = 0
    gated = headless(
        "over_grpc.py", server, "--model", MODEL, "--grpc", server.grpc_address, "--fail-if", "p99>1us", "rate<1"
    )
    assert gated.returncode == 99
    assert "p99>1us: failed" in gated.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        (["--model", "other"], 2, "Latest(other)"),
        (["--model", MODEL, "--signature", "none"], 2, 'no signature "none"'),
        (["--model", MODEL, "--rows", "many"], 2, "is not a number or a distribution"),
        (["--model", MODEL, "--input", "no.npz"], 2, "file no.npz does not exist"),
        (["--model", MODEL, "--fail-if", "p99=3"], 2, "is not a threshold"),
        (["--model", MODEL, "--grpc", "127.0.0.1:1"], 3, "Cannot reach 127.0.0.1:1"),
        ([], 2, "Missing MODEL"),
    ],
)
def test_what_cannot_be_run_ends_before_any_load(
    server: Doubling, arguments: list[str], exit_code: int, complaint: str
) -> None:
    run = headless("over_grpc.py", server, "--grpc", server.grpc_address, *arguments)
    assert run.returncode == exit_code
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
    assert server.rows == []


class Page:
    """Locust's web page, with a browser's requests."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return bytes(answer.read())

    def start(self, **fields: str) -> dict[str, Any]:
        form = urllib.parse.urlencode({"user_count": "2", "spawn_rate": "2", "host": "", **fields}).encode()
        with urllib.request.urlopen(self._url + "/swarm", form, timeout=60) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document

    def stop(self) -> None:
        with urllib.request.urlopen(self._url + "/stop", b"", timeout=60) as answer:
            assert json.loads(answer.read())["success"]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait for statistics of a name and return them."""
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            stats = json.loads(self.get("/stats/requests"))["stats"]
            found = [line for line in stats if line["name"] == name and line["num_requests"]]
            if found:
                return dict(found[0])
            time.sleep(0.2)
        raise AssertionError(f"no requests of {name}")

    def wait_until_there(self) -> None:
        until_s = time.monotonic() + 60
        while True:
            try:
                self.get("/")
                return
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)


@pytest.mark.slow
def test_the_web_page_starts_runs_of_the_model_that_its_form_names(server: Doubling) -> None:
    (port,) = free_ports(1)
    command = [LOCUST, "-f", str(LOCUSTFILES / "over_grpc.py"), "--web-host", "127.0.0.1", "--web-port", str(port)]
    command += ["--grpc", server.grpc_address, *BUSY_IS_FINE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            page = Page(port)
            page.wait_until_there()
            assert b"recorded_model" in page.get("/")  # the form has our fields
            assert page.start(model="other")["success"]
            assert page.wait_for("no requests sent")["num_failures"] == 1
            assert b"Latest(other)" in page.get("/stats/requests")
            page.stop()
            assert server.rows == []
            assert page.start(model=MODEL, rows="2")["success"]
            assert page.wait_for("grpc")["num_failures"] == 0
            page.stop()
        finally:
            process.terminate()
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Cannot send requests" in errors
    assert "Traceback" not in errors
    assert 0 <= len(server.rows) - requests_in(output)["total"] <= 2
    assert set(server.rows) == {2}
