"""Tests for whole runs of `tpuserve loadtest`, each in a separate process.

gevent must not run in a process with the server's gRPC threads.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, QUEUE_FULL, UNRECORDED, Doubling, serving

# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ["--generator-limit", "note"]
COMMAND = str(Path(sys.executable).with_name("tpuserve-loadtest"))


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def loadtest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=100, check=False)


def both(server: Doubling) -> list[str]:
    addresses = ["--grpc", server.grpc_address, "--rest", server.rest_url]
    return [MODEL, *addresses, "--users", "4", "--duration", "700ms", "--warm-up", "0", *UNRECORDED, *BUSY_IS_FINE]


def test_both_protocols_are_measured_and_every_answer_counted(server: Doubling, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((5, 4), np.float32))
    run = loadtest(*both(server), "--input", str(tmp_path / "in.npz"), "--rows", "3", "--duration", "3s", "--json")
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["ok"]
    assert report["errors"] == []
    assert list(report["protocols"]) == ["grpc", "rest"]
    for figures in report["protocols"].values():
        assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        # The rate excludes responses after the end.
        assert 0 < figures["rate_per_s"] <= figures["requests"] / report["elapsed_s"]
    # The table contains exactly the requests that arrived.
    assert report["total"]["requests"] == len(server.rows)
    assert set(server.rows) == {3}


def test_the_table_has_a_line_for_each_protocol_and_the_total(server: Doubling) -> None:
    run = loadtest(*both(server))
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    cells = {line[1]: line for line in lines if len(line) > 9}
    assert {"gRPC", "REST", "total"} <= cells.keys()
    assert "p50" in run.stdout
    assert "p99" in run.stdout
    assert "\x1b" not in run.stdout  # plain, because the output is not a terminal
    assert "Running for 0.7 s: 4 users" in run.stderr


def test_failures_are_counted_and_named_and_make_the_exit_code_1(server: Doubling) -> None:
    server.fail_every = 3
    run = loadtest(*both(server), "--json")
    assert run.returncode == 1
    report: dict[str, Any] = json.loads(run.stdout)
    assert not report["ok"]
    assert report["total"]["failures"] == report["total"]["requests"] // 3 == len(server.rows) // 3
    messages = {error["message"]: error["count"] for error in report["errors"]}
    failures = {protocol: figures["failures"] for protocol, figures in report["protocols"].items()}
    refusals = {"grpc": f"RESOURCE_EXHAUSTED: {QUEUE_FULL}", "rest": f"HTTP 429: {QUEUE_FULL}"}
    assert messages == {refusals[protocol]: count for protocol, count in failures.items() if count}


def test_the_commonest_error_is_named_under_the_table(server: Doubling) -> None:
    server.fail_every = 2
    run = loadtest(
        MODEL, "--grpc", server.grpc_address, "--users", "2", "--duration", "0.5", "--warm-up", "0", *BUSY_IS_FINE
    )
    assert run.returncode == 1
    assert f"x gRPC: RESOURCE_EXHAUSTED: {QUEUE_FULL}" in run.stdout
    assert "REST" not in run.stdout


def test_an_answer_that_cannot_be_read_is_a_failure(server: Doubling) -> None:
    server.garbled = True
    run = loadtest(
        MODEL,
        "--grpc",
        server.grpc_address,
        "--users",
        "1",
        "--duration",
        "0.5",
        "--warm-up",
        "0",
        *BUSY_IS_FINE,
        "--json",
    )
    assert run.returncode == 1
    assert "PredictResponse" in json.loads(run.stdout)["errors"][0]["message"]


@pytest.mark.parametrize(("option", "scheme"), [("--grpc", ""), ("--rest", "http://")])
def test_an_unreachable_server_is_exit_code_3_and_nothing_is_measured(option: str, scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
        run = loadtest(MODEL, option, address)
    assert run.returncode == 3
    assert run.stdout == ""
    assert f"Cannot reach {address}" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "Servable not found for request: Latest(nothing)"),
        ([MODEL, "--signature", "none"], 'no signature "none"'),
        ([MODEL, "--duration", "soon"], "is not a duration"),
        ([MODEL, "--input", __file__], "is not a file of inputs"),
        ([MODEL, "--protocol", "both", "--users", "1"], "is too low for 2 protocols"),
        ([MODEL, "--rest", "localhost:8501"], "expected a URL such as http://HOST:PORT; received 'localhost:8501'"),
        ([MODEL, "--rate", "fast"], "is not a rate"),
        ([MODEL, "--rate", "5", "--users", "2"], "exclude each other"),
        ([MODEL, "--fail-if", "p99>20ms", "rate=5"], "unexpected extra argument"),
        ([MODEL, "--fail-if", "p99>20"], "p99 needs us or ms or s"),
        ([MODEL, "--trace", __file__], "one arrival time in seconds"),
        ([MODEL, "--junit", "nowhere/load.xml"], "Directory nowhere does not exist"),
        ([MODEL, "--label", "canary", "--version", "3"], "set either a version or a label"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2(server: Doubling, arguments: list[str], complaint: str) -> None:
    run = loadtest("--grpc", server.grpc_address, *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr


def test_input_cut_short_is_exit_code_2(server: Doubling, tmp_path: Path) -> None:
    for name, content in {"x.npy": b"", "x.npz": b"PK\x03\x04"}.items():
        (tmp_path / name).write_bytes(content)
        run = loadtest("--grpc", server.grpc_address, MODEL, "--input", str(tmp_path / name))
        assert run.returncode == 2
        assert name in run.stderr
        assert "Traceback" not in run.stderr


# A process that a script starts in the background ignores SIGINT, as in some CI, and so do its children.
HEEDING_CTRL_C = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_has_not_passed_and_reports_what_was_measured(
    server: Doubling, tmp_path: Path, number: signal.Signals
) -> None:
    junit, page = tmp_path / "run.xml", tmp_path / "run.html"
    options = ["--users", "32", "--duration", "10m", "--warm-up", "0", "--fail-if", "p50>10s"]
    files = ["--junit", str(junit), "--html", str(page), "--json"]
    command = [
        *HEEDING_CTRL_C,
        COMMAND,
        MODEL,
        "--grpc",
        server.grpc_address,
        *options,
        *UNRECORDED,
        *BUSY_IS_FINE,
        *files,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "Running for 600 s" in process.stderr.readline()
        assert server.reached.wait(60)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    report = json.loads(output)
    assert report["notes"][0].startswith("interrupted after ")
    assert report["notes"][0].endswith(" of 600 s")
    assert report["total"]["requests"] == len(server.rows) > 0
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    assert suite.find("testcase[@name='the load ran to its end']/error") is not None
    assert "Interrupted after " in page.read_text()


def test_help_does_not_wait_for_locust() -> None:
    modules = "import sys, tpuserve_loadtests.cli; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", modules], capture_output=True, text=True, check=True)
    assert not {"locust", "gevent", "grpc", "numpy", "rich"} & set(run.stdout.split())
