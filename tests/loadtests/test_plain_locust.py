"""Tests for the packaged locustfile under plain Locust, with its command line and its web page."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from tests.loadtests.doubling_server import MODEL, QUEUE_FULL, Doubling, serving
from tests.loadtests.locust_process import LOCUST, LOCUSTFILE, headless, requests_in, web_page
from tests.support import forked_command
from tests.support.free_ports import free_ports


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def test_a_command_prints_the_path_of_the_packaged_file() -> None:
    found = forked_command.run("tpuserve-loadtest", "locustfile")
    assert (found.returncode, found.stdout) == (0, f"{LOCUSTFILE}\n")


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("{grpc}", ["gRPC"]),
        ("grpc://{grpc}", ["gRPC"]),
        ("{rest}", ["REST"]),
        ("grpc://{grpc},{rest}", ["gRPC", "REST"]),
    ],
)
def test_the_scheme_of_the_host_chooses_the_protocol(server: Doubling, form: str, lines: list[str]) -> None:
    host = form.format(grpc=server.grpc_address, rest=server.rest_url)
    run = headless(server, "--host", host, "--model", MODEL, "--rows", "3")
    assert run.returncode == 0, run.stderr
    counted = requests_in(run.stdout)
    assert list(counted) == [*lines, "total"]
    assert counted["total"] == len(server.rows)
    assert set(server.rows) == {3}
    assert f"{MODEL} at {host.replace(',', ', ')}: " in " ".join(run.stdout.split())


def test_the_variable_of_locust_is_the_host(server: Doubling) -> None:
    run = headless(server, "--model", MODEL, LOCUST_HOST=server.rest_url)
    assert (run.returncode, list(requests_in(run.stdout))) == (0, ["REST", "total"])


def test_processes_of_locust_are_counted_together(server: Doubling) -> None:
    run = headless(server, "--host", server.grpc_address, "--model", MODEL, "--processes", "2")
    assert run.returncode == 0, run.stderr
    assert requests_in(run.stdout)["total"] == len(server.rows)


def test_the_host_of_the_master_is_the_target_of_its_workers(server: Doubling) -> None:
    port, elsewhere = free_ports(2)
    # The worker has another host, which the master's replaces.
    worker = [LOCUST, "-f", str(LOCUSTFILE), "--worker", "--master-port", str(port)]
    with subprocess.Popen([*worker, "--host", f"http://127.0.0.1:{elsewhere}"], stderr=subprocess.DEVNULL) as process:
        arguments = ("--master", "--expect-workers", "1", "--master-bind-host", "127.0.0.1")
        run = headless(server, "--host", server.rest_url, "--model", MODEL, *arguments, "--master-bind-port", str(port))
        assert process.wait(240) == 0
    assert run.returncode == 0, run.stderr
    assert requests_in(run.stdout)["total"] == len(server.rows)


def test_a_scenarios_models_get_their_shares(server: Doubling, tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    parts = f"[{{model: {MODEL}, name: small, weight: 3}}, {{model: {MODEL}, name: large, rows: 2, protocol: grpc}}]"
    path.write_text(f"grpc: {server.grpc_address}\nrest: {server.rest_url}\nmodels: {parts}\nfail_if: rate<1")
    run = headless(server, "--scenario", str(path))
    assert run.returncode == 0, run.stderr
    counted = requests_in(run.stdout)
    assert list(counted) == ["small gRPC", "small REST", "large gRPC", "total"]
    assert counted["large gRPC"] / counted["total"] == pytest.approx(0.25, abs=0.1)
    assert "passed: rate " in run.stdout


def test_the_host_replaces_every_address_of_a_scenario(server: Doubling, tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(f"grpc: 127.0.0.1:1\nrest: http://127.0.0.1:1\nmodels: [{{model: {MODEL}, name: small}}]")
    run = headless(server, "--scenario", str(path), "--host", server.rest_url)
    assert (run.returncode, list(requests_in(run.stdout))) == (0, ["small REST", "total"])


def test_failures_are_exit_code_1_and_a_failed_gate_99(server: Doubling) -> None:
    server.fail_every = 2
    run = headless(server, "--host", server.grpc_address, "--model", MODEL)
    assert run.returncode == 1
    assert QUEUE_FULL in run.stderr  # in Locust's own error report
    server.fail_every = 0
    gated = headless(server, "--host", server.grpc_address, "--model", MODEL, "--fail-if", "p99>1us", "rate<1")
    assert gated.returncode == 99
    assert "failed: p99 " in gated.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        (["--model", "other"], 2, "Latest(other)"),
        (["--model", MODEL, "--signature", "none"], 2, 'no signature "none"'),
        (["--model", MODEL, "--rows", "many"], 2, "is not a number or a distribution"),
        (["--model", MODEL, "--input", "no.npz"], 2, "File 'no.npz' does not exist"),
        (["--model", MODEL, "--fail-if", "p99=3"], 2, "is not a threshold"),
        (["--model", MODEL, "--host", "127.0.0.1:1"], 3, "Cannot reach 127.0.0.1:1"),
        (["--model", MODEL, "--host", "ftp://127.0.0.1"], 2, "Unknown scheme"),
        (["--model", MODEL, "--host", "a:1,b:2"], 2, "has two gRPC addresses"),
        (["--model", MODEL, "--host", ""], 2, "You must specify the base host. Set --host, the variable LOCUST_HOST"),
        (["--model", MODEL, "--rest", "http://a:1"], 2, "Set the address with Locust's --host"),
        (
            ["--model", MODEL, "--ca", certifi.where()],
            2,
            "certificate options have no effect without an address with TLS",
        ),
        ([], 2, "Missing MODEL"),
    ],
)
def test_what_cannot_be_run_ends_before_any_load(
    server: Doubling, arguments: list[str], exit_code: int, complaint: str
) -> None:
    run = headless(server, "--host", server.grpc_address, *arguments)
    assert run.returncode == exit_code
    assert complaint in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
    assert server.rows == []


@pytest.mark.slow
def test_the_web_page_starts_runs_of_the_model_and_the_host_that_its_form_names(server: Doubling) -> None:
    with serving(Doubling()) as other, web_page("--host", server.grpc_address) as page:
        assert b"recorded_model" in page.get("/")  # the form has our fields
        assert page.start(host=server.grpc_address, model="other")["success"]
        assert page.wait_for("no requests sent")["num_failures"] == 1
        assert b"Latest(other)" in page.get("/stats/requests")
        page.stop()
        assert server.rows == []
        assert page.start(host=server.grpc_address, model=MODEL, rows="2")["success"]
        assert page.wait_for("grpc")["num_failures"] == 0
        page.stop()
        sent = len(server.rows)
        assert other.rows == []
        assert page.start(host="", model=MODEL)["success"]
        page.wait_for("no requests sent")
        assert b"You must specify the base host" in page.get("/stats/requests")
        page.stop()
        assert page.start(host=other.rest_url, model=MODEL, rows="3")["success"]
        assert page.wait_for("rest")["num_failures"] == 0
        page.stop()
        assert (len(server.rows), set(server.rows)) == (sent, {2})
    assert "Cannot send requests" in page.errors
    assert requests_in(page.output)["total"] == len(other.rows)
    assert set(other.rows) == {3}
    assert f"{MODEL} at {other.rest_url}: " in " ".join(page.output.split())
