"""Tests for open loads, several processes, and subcommands with several loads, each in a separate process."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.support import forked_command
from tests.support.free_ports import free_ports
from tpuserve_exporter.deployment.capacity import Capacity
from tpuserve_exporter.errors import OptionConflict

COMMAND = str(Path(sys.executable).with_name("tpuserve-loadtest"))
# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ("--generator-limit", "note")

Serve = Callable[[Doubling], Doubling]


@pytest.fixture
def serve() -> Iterator[Serve]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda model: stack.enter_context(serving(model))


def loadtest(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", arguments[0], *UNRECORDED, *arguments[1:], *BUSY_IS_FINE)


def search(server: Doubling, *arguments: str) -> forked_command.Ended:
    """Run a search whose first user runs for half a second instead of two."""
    options = ("--grpc", server.grpc_address, "--warm-up", "0", *BUSY_IS_FINE)
    brief = {"tpuserve_loadtests.cli.search_command._FIRST_S": 0.5}
    return forked_command.run("tpuserve-loadtest", "search", MODEL, *options, *arguments, constants=brief)


def loadtest_help() -> str:
    return subprocess.run([COMMAND, "--help"], capture_output=True, text=True, timeout=100, check=True).stdout


def measured(*arguments: str) -> dict[str, Any]:
    run = loadtest("run", MODEL, *arguments, "--json")
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document


def test_an_open_load_sends_what_its_schedule_says(serve: Serve) -> None:
    server = serve(Doubling())
    addresses = ("--grpc", server.grpc_address, "--rest", server.rest_url)
    report = measured(*addresses, "--rate", "40,120", "--arrivals", "constant", "--duration", "1", "--warm-up", "250ms")
    assert report["total"]["requests"] == 80
    assert report["warm_up_requests"] == 10
    assert len(server.rows) == 90
    assert abs(report["protocols"]["grpc"]["requests"] - 40) <= 1
    assert report["offered_per_s"] == 80
    assert report["generator"]["lag_p99_ms"] > 0


def test_a_stall_shows_in_an_open_loads_p90_and_hides_in_a_closed_ones_median(serve: Serve) -> None:
    options = ("--duration", "2", "--warm-up", "0")
    closed, opened = serve(Doubling(stall_at=5)), serve(Doubling(stall_at=5))
    loads = (("--grpc", closed.grpc_address, "--users", "1"), ("--grpc", opened.grpc_address, "--rate", "100"))
    with ThreadPoolExecutor(len(loads)) as both:
        seen, seen_open = (report["total"] for report in both.map(lambda load: measured(*load, *options), loads))
    # One request met the stall, and the closed load sent no others meanwhile. A busy machine makes both loads slower.
    assert seen["max_ms"] > 950
    assert seen_open["p90_ms"] > 700
    assert seen["p50_ms"] < seen_open["p90_ms"]
    assert seen_open["requests"] == pytest.approx(200, abs=50)


def test_processes_share_a_load_and_their_measurements_add_up(serve: Serve, tmp_path: Path) -> None:
    server = serve(Doubling(fail_every=50))
    junit = tmp_path / "junit.xml"
    arguments = ["--grpc", server.grpc_address, "--rate", "80", "--arrivals", "constant", "--duration", "1"]
    arguments += ["--warm-up", "250ms"]
    gates = ["--fail-if", "error_rate>5%", "rate<500", "--junit", str(junit)]
    run = loadtest(MODEL, *arguments, "--processes", "2", *gates, "--json")
    assert run.returncode == 99, run.stderr
    report = json.loads(run.stdout)
    assert report["total"]["requests"] == 80
    assert report["total"]["requests"] + report["warm_up_requests"] == len(server.rows)
    assert len(report["generator"]["cores"]) == 2
    assert [gate["failed"] for gate in report["gates"]] == [False, True]
    assert failed_cases(junit) == ["rate >= 500"]
    (tmp_path / "run.json").write_text(run.stdout)
    with pytest.raises(
        OptionConflict, match=r"run\.json: the run failed with exit code 99, so its rate is no capacity"
    ):
        Capacity.read(tmp_path / "run.json")


def test_a_gate_fails_with_a_rare_model_whose_requests_all_fail(serve: Serve, tmp_path: Path) -> None:
    server = serve(Doubling(refused_rows=8))
    scenario = tmp_path / "mixed.yaml"
    small, big = f"{{model: {MODEL}, name: small, weight: 199}}", f"{{model: {MODEL}, name: big, rows: 8}}"
    scenario.write_text(f"models: [{small}, {big}]\nslo: [error_rate<=2%]\nload: {{users: 8, requests: 2000}}\n")
    options = ("--scenario", str(scenario), "--grpc", server.grpc_address, *BUSY_IS_FINE)
    run = loadtest("run", *options, "--fail-if", "small.error_rate>0.1%", "--json")
    assert run.returncode == 99, run.stderr
    passed, failed = json.loads(run.stdout)["gates"]
    assert (passed["gate"], passed["failed"]) == ("small.error_rate>0.1%", False)
    assert (failed["gate"], failed["failed"], failed["line"]) == ("error_rate>2%", True, "big")
    unknown = loadtest("run", *options, "--fail-if", "huge.p99>20ms")
    assert unknown.returncode == 2
    assert "selects no line. The lines are: small gRPC, big gRPC" in " ".join(unknown.stderr.split())


def test_a_worker_from_elsewhere_sends_the_load(serve: Serve) -> None:
    server = serve(Doubling())
    (port,) = free_ports(1)
    command = [COMMAND, "worker", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as worker:
        remote = ("--remote", "1", "--listen", f"127.0.0.1:{port}")
        report = measured(
            "--grpc", server.grpc_address, "--users", "2", "--duration", "500ms", "--warm-up", "0", *remote
        )
        _, errors = worker.communicate(timeout=60)
    assert report["total"]["requests"] > 0
    assert worker.returncode == 0, errors


def test_an_address_that_is_taken_is_no_place_to_wait_for_workers(serve: Serve) -> None:
    server = serve(Doubling())
    run = loadtest("run", MODEL, "--grpc", server.grpc_address, "--remote", "1", "--listen", server.grpc_address)
    assert run.returncode == 2
    assert f"Cannot listen at {server.grpc_address}" in run.stderr
    assert "Traceback" not in run.stderr


def test_every_command_is_told_in_a_line_of_the_help() -> None:
    shown = loadtest_help()
    assert "..." not in shown.partition("Commands:")[2].partition("Exit codes")[0]
    assert shown.index(" run ") < shown.index(" worker ")


def test_help_has_every_option_once_under_a_heading() -> None:
    import click
    from click.testing import CliRunner

    from tpuserve_loadtests.cli import loadtest as group

    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        shown = CliRunner().invoke(group, [name, "--help"]).output
        shown = shown[shown.index("\nOptions:") :]
        for option in command.params:
            if option.opts[0].startswith("--"):
                assert len(re.findall(rf"^  {option.opts[0]}\b(?!-)", shown, re.MULTILINE)) == 1, (name, option.opts)
        # The others send no load.
        if name not in ("worker", "init", "locustfile", "diff"):
            assert shown.index("Server and model:") < shown.index("Load generator:") < shown.index("Output:")


def test_a_hopeless_run_ends_early(serve: Serve) -> None:
    server = serve(Doubling(service_s=0.05))
    options = ("--grpc", server.grpc_address, "--rate", "10", "--duration", "10m", "--warm-up", "0")
    run = loadtest(MODEL, *options, "--fail-if", "max>10ms")
    assert run.returncode == 99
    assert "stopped early: max>10ms is certain" in run.stdout


def test_a_sweep_ends_with_the_first_load_that_is_too_much(serve: Serve) -> None:
    server = serve(Doubling(service_s=0.1))
    options = ("--grpc", server.grpc_address, "--duration", "2s", "--warm-up", "100ms", "--json")
    # A single user waits only for the device. Each of 8 users waits for 7 others and the device, 800 ms.
    run = loadtest("sweep", MODEL, *options, "--users", "1,8,64,128", "--until", "p50>500ms", "rate<0.1")
    assert run.returncode == 0, run.stderr
    assert [step["users"] for step in json.loads(run.stdout)["steps"]] == [1, 8]
    assert "--until p50>500ms is true for 8 users; skipping 2 further loads" in run.stderr


def test_a_load_of_a_sweep_that_is_too_much_is_not_run_to_its_end(serve: Serve) -> None:
    server = serve(Doubling(service_s=0.05))
    options = ("--grpc", server.grpc_address, "--duration", "10m", "--warm-up", "0")
    run = loadtest("sweep", MODEL, *options, "--rate", "10,20", "--until", "max>10ms")
    assert run.returncode == 0, run.stderr
    assert "10 requests/s, poisson: stopped early: max>10ms is certain" in run.stdout
    assert "20 requests/s" not in run.stdout


def test_a_sweep_has_a_line_for_each_load(serve: Serve) -> None:
    server = serve(Doubling(service_s=0.1))
    options = ("--grpc", server.grpc_address, "--duration", "2s", "--warm-up", "100ms")
    run = loadtest("sweep", MODEL, *options, "--users", "1,4")
    assert run.returncode == 0, run.stderr
    rows = [re.findall(r"[\d.,]+", line) for line in run.stdout.splitlines() if "│" in line]
    assert [row[0] for row in rows] == ["1", "4"]
    # One device: more users wait longer without more throughput.
    assert float(rows[1][4]) > float(rows[0][4])
    assert float(rows[1][3]) < 12


def failed_cases(junit: Path) -> list[str | None]:
    return [case.get("name") for case in ElementTree.parse(junit).iter("testcase") if case.find("failure") is not None]


def test_a_slower_version_is_worse(serve: Serve, tmp_path: Path) -> None:
    a, b = serve(Doubling(service_s=0.005)), serve(Doubling(service_s=0.040))
    junit = tmp_path / "compare.xml"
    options = ("--users", "4", "--rounds", "3", "--duration", "1s", "--warm-up", "100ms", "--junit", str(junit))
    run = loadtest("compare", MODEL, a.grpc_address, b.grpc_address, *options, "--json")
    assert run.returncode == 99, run.stderr
    assert "p50 of B is not worse" in failed_cases(junit)
    report = json.loads(run.stdout)
    assert report["verdict"] == "worse"
    assert report["figures"]["p50"]["verdict"] == "worse"
    assert 1.2 < report["figures"]["p50"]["ratio"] < 10
    assert report["rounds"] == 3


def test_load_without_users_and_rate_is_open_at_half_of_what_users_reach(serve: Serve) -> None:
    server = serve(Doubling(service_s=0.020))  # at most 50 per second
    options = (
        "--rounds",
        "3",
        "--duration",
        "500ms",
        "--warm-up",
        "0",
        "--unclear",
        "note",
        "--generator-limit",
        "note",
    )
    run = loadtest("compare", MODEL, server.grpc_address, server.grpc_address, *options)
    found = re.search(
        r"open load of ([\d.]+) requests/s: half of the rate that 8 users reached", " ".join(run.stdout.split())
    )
    assert found, run.stdout + run.stderr
    assert 5 < float(found[1]) <= 26


@pytest.mark.slow
def test_the_highest_rate_is_searched_for_on_a_server(serve: Serve, tmp_path: Path) -> None:
    server = serve(Doubling(service_s=0.020))
    # Constant arrivals: with random arrivals, results of such short probes vary, and the search repeats them.
    options = ("--from", "20", "--precision", "0.3", "--duration", "1500ms", "--arrivals", "constant")
    run = search(server, "--slo", "p90<=500ms", "error_rate<=1%", *options, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    # The device serves 50 requests per second. At 70 per second, a tenth of the requests wait half a second in the
    # queue. Other load on the machine does not cause such waits.
    assert 20 <= report["rate_per_s"] < 100
    assert report["does_not_hold_per_s"] > report["rate_per_s"]
    # `tpuserve deploy render --loadtest` reads the document.
    file = tmp_path / "search.json"
    file.write_text(run.stdout)
    assert Capacity.read(file) == Capacity(report["rate_per_s"], 1, ("p90<=500ms", "error_rate<=1%"), MODEL)


def test_an_objective_that_no_rate_keeps_is_told(serve: Serve, tmp_path: Path) -> None:
    server, junit = serve(Doubling(service_s=0.030)), tmp_path / "search.xml"
    run = search(server, "--slo", "p99<=20ms", "--junit", str(junit))
    assert run.returncode == 99, run.stderr
    assert failed_cases(junit) == ["a rate keeps p99<=20ms"]
    assert re.search(
        r"No rate holds: a single user already misses the objective, with p99<=20ms: (\d+) of \1 late", run.stdout
    )
    assert "Trying" not in run.stderr


def test_a_search_ends_where_nothing_is_answered(serve: Serve) -> None:
    server = serve(Doubling(fail_every=1))
    run = search(server, "--slo", "p99<=20ms")
    assert run.returncode == 1
    assert "requests failed: RESOURCE_EXHAUSTED" in run.stdout
    assert "Trying" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["search", MODEL], "Missing option '--slo'"),
        (["search", MODEL, "--slo", "p99>20ms"], "is not an objective"),
        (["search", MODEL, "--slo", "rate>20"], "is not an objective"),
        (["search", MODEL, "--slo", "p99<=20ms", "--from", "9", "--to", "8"], "9 exceeds --to 8"),
        (["run", MODEL, "--rate", "5", "--burst", "4"], "--burst has no effect without --arrivals bursts"),
        (["sweep", MODEL, "--arrivals", "constant"], "--arrivals has no effect without --rate"),
        (["run", MODEL, "--users", "2", "--speed", "4"], "--speed has no effect without --trace"),
        (["compare", MODEL, "1", "2", "--recorded-model", "m"], "--recorded-model has no effect without --recorded"),
        (["mlperf", MODEL, "--scenario", "offline", "--listen", "a:1"], "--listen has no effect without --remote"),
        (["sweep", MODEL, "--rate", "10..20"], "instead of a ramp"),
        (["sweep", MODEL, "--users", "1,x"], "Write 1,2,4,8"),
        (["sweep", MODEL, "--until", "fast"], "is not a threshold"),
        (["compare", MODEL, "1"], "Missing argument 'B'"),
        (
            ["runs"],
            "Did you mean 'run'? For a model of this name, write: tpuserve loadtest run",
        ),
        (["searsh", MODEL, "--slo", "p99<=20ms"], "Did you mean 'search'?"),
        (["rnu", MODEL], "Did you mean 'run'?"),
        (["worker", "nowhere"], "is not HOST:PORT"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2(arguments: list[str], complaint: str) -> None:
    run = forked_command.run("tpuserve-loadtest", *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
