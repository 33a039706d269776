"""`tpuserve loadtest soak` against real servers, in a process of its own; seconds instead of hours."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving

HEEDING_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tpuserve_loadtests.cli import main; main()"
)
COMMAND = [sys.executable, "-c", HEEDING_CTRL_C, "soak", MODEL, "--generator-limit", "note", "--json"]


@dataclass
class Tiring(Doubling):
    """Each prediction takes its device a little longer than the last one."""

    def run(self, x: np.ndarray) -> np.ndarray | None:
        self.service_s = 0.005 + 0.00002 * len(self.rows)
        return super().run(x)


@pytest.fixture
def tiring() -> Iterator[Doubling]:
    with serving(Tiring()) as model:
        yield model


@pytest.mark.timeout(40)
def test_a_server_that_becomes_slower_is_drifting(tiring: Doubling, tmp_path: Path) -> None:
    log = tmp_path / "soak.jsonl"
    options = [
        "--grpc",
        tiring.grpc_address,
        "--users",
        "2",
        "--duration",
        "10s",
        "--segments",
        "20",
        "--warm-up",
        "0.5",
    ]
    run = subprocess.run(
        [*COMMAND, *options, "--log", str(log)], capture_output=True, text=True, timeout=35, check=False
    )
    assert run.returncode == 99, run.stderr
    report = json.loads(run.stdout)
    assert report["verdict"] == "drifting"
    courses = {drift["figure"]: drift["course"] for drift in report["drifts"]}
    assert courses["p50_ms"] == "drifting"
    assert courses["memory_bytes"] == "unknown"
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert logged == report["segments"]
    assert len(logged) == 20
    assert sum(segment["requests"] for segment in logged) == report["total"]["requests"]
    assert report["total"]["requests"] + report["warm_up_requests"] == len(tiring.rows)
    assert run.stderr.count("p50") == 20


def test_ctrl_c_reports_what_there_is(tiring: Doubling, tmp_path: Path) -> None:
    log = tmp_path / "soak.jsonl"
    options = [
        "--grpc",
        tiring.grpc_address,
        "--rate",
        "50",
        "--duration",
        "1h",
        "--segments",
        "1000",
        "--warm-up",
        "0",
    ]
    with subprocess.Popen(
        [*COMMAND, *options, "--log", str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "1 of 1000" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=15)
    report = json.loads(output)
    assert process.returncode == 1, errors
    assert report["verdict"] == "unknown"
    assert report["notes"][0] == "stopped early"
    assert report["total"]["requests"] == len(tiring.rows)
    assert json.loads(log.read_text().splitlines()[0])["requests"] > 100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--duration", "5s"], "shorter than 10 s shows no trend"),
        (["--rate", "10,20"], "would look like a drift"),
        (["--rate", "10", "--users", "2"], "give one of them"),
        (["--fail-if", "p99=1"], "is no threshold"),
    ],
)
def test_what_cannot_be_soaked_is_exit_code_2(arguments: list[str], complaint: str) -> None:
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=18, check=False)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
