"""Tests for own Locust scenarios with TpuserveUser: real Locust processes against a real server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.loadtests.doubling_server import MODEL, QUEUE_FULL, Doubling, serving
from tests.loadtests.locust_process import (
    BUSY_IS_FINE,
    LOCUST,
    await_requests,
    headless,
    requests_in,
    table_of,
    web_page,
)
from tests.loadtests.truth.script import Fault, Script
from tests.loadtests.truth.scripted_server import serving as scripted
from tests.support.certificates import Authority, ServerTls

TWO_STEPS = """
    import numpy as np
    from locust import constant, task
    from tpuserve_loadtests import Rows, TpuserveUser

    class Visitor(TpuserveUser):
        wait_time = constant(0.005)
        rows = Rows.from_csv("{folder}/rows.csv")

        def on_start(self):
            self.own = self.rows.shuffled(seed=self.number)

        @task
        def visit(self):
            row = next(self.own)
            first = self.client.predict("doubling", [[row["a"], row["b"], 0, 1]], name="first")
            assert first["y"].tolist() == [[2 * row["a"], 2 * row["b"], 0, 2]]
            second = self.client.predict("doubling", {{"x": np.repeat(first["y"], 2, axis=0)}}, name="second")
            assert second["y"].shape == (2, 4)
"""
ONE_STEP = """
    from locust import task
    from tpuserve_loadtests import TpuserveUser

    class Visitor(TpuserveUser):
        {attribute}

        @task
        def visit(self):
            self.client.predict("doubling", {{"x": [[1, 2, 3, 4]]}}{arguments})
"""


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def locustfile(folder: Path, text: str, **values: str) -> Path:
    file = folder / "own.py"
    file.write_text(dedent(text).format(**{"attribute": "", "arguments": "", "folder": str(folder), **values}))
    return file


@pytest.mark.parametrize(("protocol", "options"), [("REST", ()), ("gRPC", ("--processes", "2"))])
def test_each_step_is_a_line_and_the_counts_are_the_servers(
    server: Doubling, tmp_path: Path, protocol: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2.5\n3,4\n5,0.5\n")
    host = {"REST": server.rest_url, "gRPC": f"grpc://{server.grpc_address}"}[protocol]
    run = headless(server, "--host", host, *options, file=locustfile(tmp_path, TWO_STEPS))
    assert run.returncode == 0, run.stderr
    counted = requests_in(run.stdout)
    assert list(counted) == ["first", "second", "total"]
    for name, rows in (("first", 1), ("second", 2)):
        assert counted[name] == server.rows.count(rows)
    assert f"own.py at {host}: " in " ".join(run.stdout.split())
    assert f"{protocol}     first" in run.stderr  # in Locust's own table


def test_a_failed_request_is_counted_once_and_ends_its_task_alone(server: Doubling, tmp_path: Path) -> None:
    server.fail_every = 2
    run = headless(server, "--host", server.rest_url, file=locustfile(tmp_path, ONE_STEP))
    assert run.returncode == 1
    requests, failures = table_of(run.stdout)[MODEL]
    assert requests == len(server.rows)  # nothing is sent again
    assert abs(failures - requests / 2) <= 4
    assert f"REST doubling: ResourceExhausted('{QUEUE_FULL}')" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_refused_stream_is_sent_once_more_and_counted(tmp_path: Path) -> None:
    file = locustfile(tmp_path, ONE_STEP)
    with scripted(Script(service_s=0.005, faults={Fault.REFUSED: 1})) as target:
        command = [LOCUST, "-f", str(file), "--headless", "-u", "1", "-t", "1", "--host", target.grpc, *BUSY_IS_FINE]
        run = subprocess.run(command, capture_output=True, text=True)
        log = target.end()
    requests, failures = table_of(run.stdout)[MODEL]
    retries = int(next(line for line in run.stdout.splitlines() if MODEL in line and "│" in line).split("│")[4])
    assert failures == retries == requests > 0
    # Locust kills the request in flight at its end.
    assert 0 <= len(log) - 2 * requests <= 2


def test_a_failed_check_is_a_failed_request(server: Doubling, tmp_path: Path) -> None:
    text = ONE_STEP + (
        """
        def look(self, prediction):
            assert prediction["y"].max() < 8, "too large"
    """
    )
    file = locustfile(tmp_path, text, arguments=", check=self.look")
    run = headless(server, "--host", server.grpc_address, file=file)
    requests, failures = table_of(run.stdout)[MODEL]
    assert (run.returncode, failures) == (1, requests)
    assert "gRPC doubling: AssertionError('too large')" in run.stderr


def test_an_exception_of_a_task_fails_a_run_whose_requests_succeed(server: Doubling, tmp_path: Path) -> None:
    text = ONE_STEP + "            self.nothing()\n"
    run = headless(server, "--host", server.grpc_address, file=locustfile(tmp_path, text), requests=8)
    assert table_of(run.stdout)[MODEL][1] == 0
    assert run.returncode == 1
    printed = " ".join(run.stdout.split())
    assert printed.startswith("The scenario failed: ")
    assert "ended with an exception: 'Visitor' object has no attribute 'nothing'" in printed


def test_the_run_time_counts_from_the_start_of_the_run(server: Doubling, tmp_path: Path) -> None:
    # gevent starts a timer from the time that its loop read last. At the import, that is before all imports.
    text = ONE_STEP + (
        """
    from gevent import get_hub
    from locust import events

    LOOP = get_hub().loop
    IMPORTED = LOOP.now()

    @events.init.add_listener
    def report(**_):
        print("the clock is new" if LOOP.now() > IMPORTED else "the clock is old")
    """
    )
    run = headless(server, "--host", server.rest_url, file=locustfile(tmp_path, text), requests=1)
    assert "the clock is new" in run.stdout


def test_requests_of_other_users_count_too(server: Doubling, tmp_path: Path) -> None:
    text = (
        ONE_STEP
        + """
    from locust import HttpUser

    class Stranger(HttpUser):
        @task
        def visit(self):
            self.client.get("/none")
    """
    )
    run = headless(server, "--host", server.rest_url, file=locustfile(tmp_path, text))
    found = table_of(run.stdout)
    assert run.returncode == 1
    assert found["/none"][0] == found["/none"][1] == found["total"][1] > 0
    assert found[MODEL][1] == 0


@pytest.mark.parametrize("form", ["{grpc}", "{rest}"])
def test_a_deadline_of_a_call_ends_it(server: Doubling, tmp_path: Path, form: str) -> None:
    server.hangs = True
    file = locustfile(tmp_path, ONE_STEP, arguments=", timeout_s=0.05")
    host = form.format(grpc=server.grpc_address, rest=server.rest_url)
    run = headless(server, "--host", host, "-t", "3s", file=file, requests=sys.maxsize)
    requests, failures = table_of(run.stdout)[MODEL]
    assert run.returncode == 1
    assert requests == failures > 0
    assert "DeadlineExceeded" in run.stderr


def test_options_of_the_command_line_reach_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, key = authority.issue("client@example.org"), tmp_path / "api-key"
    key.write_text("s3cr3t\n")
    with serving(Doubling(token="s3cr3t", tls=ServerTls(authority.server, authority.ca))) as server:
        identity = ["--ca", str(authority.ca), "--cert", str(own.cert), "--key", str(own.key)]
        for host in (server.grpc_address, server.rest_url):
            run = headless(
                server,
                *("--host", host, *identity, "--api-key-file", str(key)),
                file=locustfile(tmp_path, ONE_STEP),
                requests=10,
            )
            assert run.returncode == 0, run.stderr
            assert "s3cr3t" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("attribute", "arguments", "complaint"),
    [
        ("", [], "You must specify the base host. Set --host"),
        ("host = 'ftp://a'", [], "Unknown scheme"),
        ("", ["--host", "a:1", "--request-timeout", "soon"], "'soon' is not a duration"),
        ("", ["--host", "a:1", "--fail-if", "p99=3"], "is not a threshold"),
    ],
)
def test_what_cannot_be_run_ends_before_any_load(
    server: Doubling, tmp_path: Path, attribute: str, arguments: list[str], complaint: str
) -> None:
    run = headless(server, *arguments, file=locustfile(tmp_path, ONE_STEP, attribute=attribute))
    assert run.returncode == 2
    assert complaint in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_a_key_does_not_cross_the_network_in_plaintext(server: Doubling, tmp_path: Path) -> None:
    file = locustfile(tmp_path, ONE_STEP)
    run = headless(server, "--host", "http://192.0.2.1:8501", file=file, TPUSERVE_API_KEY="s3cr3t")
    assert run.returncode == 2
    assert "set --allow-plaintext-key" in " ".join(run.stderr.split())


def test_a_worker_that_cannot_send_makes_the_run_inconclusive(server: Doubling, tmp_path: Path) -> None:
    # One process has an invalid key, as on a machine with another file. This listener precedes that of the class.
    text = """
    import os
    from locust import events

    @events.test_start.add_listener
    def lose_the_key(environment, **_):
        if getattr(environment.runner, "worker_index", 0) == 1:
            os.environ["TPUSERVE_API_KEY"] = "two words"
    """
    text = dedent(text) + dedent(ONE_STEP)
    run = headless(
        server, "--host", server.grpc_address, "--processes", "2", file=locustfile(tmp_path, text), TPUSERVE_API_KEY="k"
    )
    assert run.returncode == 98, run.stdout + run.stderr
    assert "it lost the worker on" in " ".join(run.stdout.split())


def test_the_web_page_replaces_the_host_of_the_class_for_one_run(server: Doubling, tmp_path: Path) -> None:
    with serving(Doubling()) as other:
        file = locustfile(tmp_path, ONE_STEP, attribute=f"host = '{server.rest_url}'")
        with web_page(file=file) as page:
            assert page.start(host=f"grpc://{other.grpc_address}")["success"]
            page.wait_for(MODEL)
            page.stop()
            assert server.rows == []
            sent = len(other.rows)
            assert page.start(host="")["success"]  # an empty field leaves the host of the class
            await_requests(server, 20)  # Locust keeps the statistics of the page for two seconds
            page.stop()
        assert len(other.rows) == sent
        assert requests_in(page.output)["total"] == len(server.rows)
