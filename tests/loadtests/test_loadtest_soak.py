"""Tests for `tpuserve loadtest soak` against real servers in a separate process, in seconds instead of hours."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fastapi import FastAPI, Response

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving, serving_http
from tests.support import forked_command

HEEDING_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tpuserve_loadtests.cli import main; main()"
)
SOAK = ["soak", MODEL, *UNRECORDED, "--generator-limit", "note", "--json"]


def soak(*arguments: str) -> forked_command.Ended:
    brief = {"tpuserve_loadtests.cli.commands.LEAST_SOAK_S": 5.0}  # the default is 10
    return forked_command.run("tpuserve-loadtest", *SOAK, *arguments, constants=brief)


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling(service_s=0.005)) as model:
        yield model


@pytest.fixture
def tiring(server: Doubling) -> Iterator[str]:
    """Yield the address of a metrics page that shows a degrading server.

    Each scrape adds a MiB to the process' memory and 2 ms to the service time. A scrape follows each segment, and a
    busy machine adds less to the latency.
    """
    app = FastAPI()
    mebibytes = count(200)

    @app.get("/metrics")
    async def metrics() -> Response:
        server.service_s += 0.002
        memory = next(mebibytes) * 2**20
        return Response(f"tpuserve_requests_total 1\nprocess_resident_memory_bytes {memory}\n", media_type="text/plain")

    with serving_http(app) as port:
        yield f"http://127.0.0.1:{port}/metrics"


def test_a_server_that_becomes_slower_and_grows_is_drifting(server: Doubling, tiring: str, tmp_path: Path) -> None:
    log = tmp_path / "soak.jsonl"
    options = ["--grpc", server.grpc_address, "--server-metrics", tiring, "--users", "2"]
    # Segments of a sixth of a second, because a segment without responses on a busy machine would end the soak. Their
    # number is the default: with fewer, equal neighbours could rise by chance.
    options += ["--duration", "8s", "--warm-up", "0.3", "--junit", str(tmp_path / "soak.xml")]
    run = soak(*options, "--log", str(log))
    assert run.returncode == 99, run.stderr
    report = json.loads(run.stdout)
    assert report["verdict"] == "drifting"
    courses = {drift["figure"]: drift["course"] for drift in report["drifts"]}
    assert courses["p50_ms"] == "drifting"
    assert courses["memory_bytes"] == "drifting"
    suite = ElementTree.parse(tmp_path / "soak.xml").getroot()
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert {"p50 does not drift", "server's memory does not drift"} <= failed
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert logged == report["segments"]
    assert len(logged) == 48
    assert sum(segment["requests"] for segment in logged) == report["total"]["requests"]
    assert report["total"]["requests"] + report["warm_up_requests"] == len(server.rows)
    assert run.stderr.count("p50") == 48


def test_a_soak_that_cannot_pass_its_gates_any_more_ends() -> None:
    with serving(Doubling(fail_every=10)) as server:
        # The run sends 1,000 requests, so 45 failures are too many. The soak reaches them around the ninth segment.
        options = ["--grpc", server.grpc_address, "--rate", "100", "--duration", "10s", "--segments", "20"]
        options += ["--warm-up", "0", "--fail-if", "error_rate>4%"]
        run = soak(*options)
    assert run.returncode == 99, run.stderr
    report = json.loads(run.stdout)
    assert report["notes"][0].startswith("stopped early: error_rate>4% is certain after ")
    assert report["total"]["failures"] >= 45
    assert 1 < len(report["segments"]) < 20


def test_a_segment_without_a_request_does_not_end_the_soak(server: Doubling, tmp_path: Path) -> None:
    page = tmp_path / "soak.html"
    run = soak("--grpc", server.grpc_address, "--rate", "2", "--duration", "5s", "--segments", "20", "--warm-up", "0",
               "--html", str(page))  # fmt: skip
    report = json.loads(run.stdout)
    requests = [segment["requests"] for segment in report["segments"]]
    assert len(requests) == 20
    assert 0 in requests
    assert 0 < sum(requests) == len(server.rows)
    assert page.exists()


def test_a_server_that_stops_ends_the_soak() -> None:
    with serving(Doubling(fail_every=1)) as server:
        run = soak("--grpc", server.grpc_address, "--rate", "20", "--duration", "10s", "--segments", "20")
    assert run.returncode == 1, run.stderr
    assert len(json.loads(run.stdout)["segments"]) == 1


def test_ctrl_c_reports_what_there_is(server: Doubling, tmp_path: Path) -> None:
    log = tmp_path / "soak.jsonl"
    options = [
        "--grpc",
        server.grpc_address,
        "--rate",
        "50",
        "--duration",
        "15m",
        "--segments",
        "1000",
        "--warm-up",
        "0",
    ]
    command = [sys.executable, "-c", HEEDING_CTRL_C, *SOAK, *options, "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "1 of 1000" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    report = json.loads(output)
    assert process.returncode == 130, errors
    assert report["verdict"] == "unknown"
    assert report["notes"][0].startswith("interrupted after ")
    assert "set --server-metrics" in report["notes"][-1]
    assert {drift["figure"]: drift["course"] for drift in report["drifts"]}["memory_bytes"] == "unknown"
    assert report["total"]["requests"] == len(server.rows)
    assert json.loads(log.read_text().splitlines()[0])["requests"] > 25


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--duration", "4s"], "needs at least 5 s to show a trend"),
        (["--rate", "10,20"], "would look like drifts"),
        (["--rate", "10", "--users", "2"], "exclude each other"),
        (["--fail-if", "p99=1"], "is not a threshold"),
    ],
)
def test_what_cannot_be_soaked_is_exit_code_2(arguments: list[str], complaint: str) -> None:
    run = soak(*arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
