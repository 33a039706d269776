"""Tests for own classes of Locust users with payloads: real Locust processes against a real server."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.locust_process import LOCUSTFILE, headless, requests_in, table_of, web_page

CLASSES = """
    import numpy as np
    from locust import constant, task
    from tpuserve_loadtests import GrpcPredictUser, Payloads, RestPredictUser, TpuserveUser

    class Small(GrpcPredictUser):
        model = "doubling"
        name = "small"
        payloads = Payloads(rows="1..2")
        golden = "record"

    class Large(RestPredictUser):
        model = "doubling"
        name = "large"
        weight = 2
        payloads = Payloads([{"x": np.ones((3, 4), np.float32)}, {"x": np.ones((4, 4), np.float32)}])
        golden = "off"

    class Visitor(TpuserveUser):
        model = "doubling"
        wait_time = constant(0.005)
        payloads = Payloads({"x": np.ones((10, 4), np.float32)}, rows=5)
        golden = "off"

        @task
        def visit(self):
            self.predict({"x": np.ones((6, 4), np.float32)}, name="first look")
            self.send_payload("second look")
"""
ONE = """
    from tpuserve_loadtests import {base}, Payloads

    class One({base}):
        model = "doubling"
        payloads = Payloads({payloads})
        golden = {golden!r}
"""


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def locustfile(folder: Path, text: str) -> Path:
    file = folder / "own.py"
    file.write_text(dedent(text))
    return file


def both(server: Doubling) -> str:
    return f"{server.grpc_address},{server.rest_url}"


def test_classes_of_several_protocols_and_payloads_are_lines_of_one_report(server: Doubling, tmp_path: Path) -> None:
    page, document, junit = (tmp_path / name for name in ("run.html", "run.json", "run.xml"))
    files = ("--tpuserve-html", str(page), "--tpuserve-json", str(document), "--tpuserve-junit", str(junit))
    run = headless(server, "--host", both(server), *files, file=locustfile(tmp_path, CLASSES), requests=400)
    assert run.returncode == 0, run.stdout + run.stderr
    counted = requests_in(run.stdout)
    assert counted.keys() == {"small", "large", "first look", "second look", "total"}
    # The rows of a request identify its class, except one or two rows, which the server also sees during the recording.
    for name, rows in (("large", (3, 4)), ("first look", (6,)), ("second look", (5,))):
        assert counted[name] == sum(server.rows.count(each) for each in rows) > 0
    assert 0 < counted["small"] < sum(server.rows.count(each) for each in (1, 2))
    assert "responses compared with golden responses were wrong" in " ".join(run.stdout.split())
    assert "own.py at grpc://" in page.read_text() or "own.py at 127.0.0.1" in page.read_text()
    saved = json.loads(document.read_text())
    assert saved["total"]["requests"] == counted["total"]
    assert saved["settings"]["Command"].startswith("locust -f ")
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_a_gate_selects_a_step_or_the_payloads_of_a_class_by_name(server: Doubling, tmp_path: Path) -> None:
    gates = ("--fail-if", "first look.p50>1us", "large.p50>10s", "nobody.p50>10s")
    run = headless(server, "--host", both(server), *gates, file=locustfile(tmp_path, CLASSES), requests=600)
    assert run.returncode == 99, run.stdout + run.stderr
    printed = " ".join(run.stdout.split())
    assert "failed: first look.p50 " in printed
    assert "passed: large.p50 " in printed
    assert "failed: nobody.p50 unknown" in printed


@pytest.mark.parametrize(
    ("base", "payloads", "host", "rows"),
    [
        ("RestPredictUser", '[{"x": [1, 2, 3, 4]}]', "{rest}", {1}),
        ("GrpcPredictUser", 'lambda: ({"x": [[row] * 4] * row} for row in range(2, 9))', "{grpc}", {*range(2, 9)}),
        ("TpuserveUser", '"{folder}/inputs.json", rows=2', "{rest}", {2}),
    ],
)
def test_a_payload_source_is_encoded_and_sent(
    server: Doubling, tmp_path: Path, base: str, payloads: str, host: str, rows: set[int]
) -> None:
    (tmp_path / "inputs.json").write_text('{"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]}')
    source = payloads.replace("{folder}", str(tmp_path))
    file = locustfile(tmp_path, ONE.format(base=base, payloads=source, golden="off"))
    run = headless(server, "--host", host.format(grpc=server.grpc_address, rest=server.rest_url), file=file)
    assert run.returncode == 0, run.stdout + run.stderr
    assert requests_in(run.stdout)[MODEL] == len(server.rows)
    assert set(server.rows) == rows


@dataclass
class TriplingLater(Doubling):
    """A model that answers wrongly after this number of requests, in the form of a right answer."""

    right: int = 300

    def run(self, x: np.ndarray) -> np.ndarray | None:
        y = super().run(x)
        return y if y is None or len(self.rows) <= self.right else y * 1.5


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (ONE.format(base="GrpcPredictUser", payloads="", golden="auto"), (), 1),
        (ONE.format(base="GrpcPredictUser", payloads="", golden="off"), (), 0),
        ("", ("--model", MODEL, "--golden", "auto"), 1),
    ],
)
def test_values_of_a_share_are_compared_unless_the_class_or_the_command_says_off(
    tmp_path: Path, text: str, arguments: tuple[str, ...], code: int
) -> None:
    file = locustfile(tmp_path, text) if text else LOCUSTFILE
    with serving(TriplingLater()) as server:
        run = headless(server, "--host", server.grpc_address, *arguments, requests=1000, file=file)
    assert run.returncode == code, run.stdout + run.stderr
    assert ("responses compared with golden responses were wrong" in " ".join(run.stdout.split())) is bool(code)


@pytest.mark.parametrize(
    ("base", "host", "payloads", "complaint"),
    [
        ("RestPredictUser", "{grpc}", "", "One sends REST; received --host 127.0.0.1:"),
        ("OipUser", "{rest}", "", "does not serve doubling"),
        ("GrpcPredictUser", "{grpc}", '[{"y": [1]}]', "expected ['x'] as in the model, received ['y']"),
        ("GrpcPredictUser", "{grpc}", '"no.npz"', "File 'no.npz' does not exist"),
    ],
)
def test_payloads_that_cannot_be_sent_end_before_any_load(
    server: Doubling, tmp_path: Path, base: str, host: str, payloads: str, complaint: str
) -> None:
    file = locustfile(tmp_path, ONE.format(base=base, payloads=payloads, golden="off"))
    run = headless(server, "--host", host.format(grpc=server.grpc_address, rest=server.rest_url), file=file)
    assert run.returncode == 2
    assert complaint in " ".join(run.stderr.split())
    assert server.rows == []


def test_requests_without_a_response_at_the_end_are_failures_with_their_age(server: Doubling, tmp_path: Path) -> None:
    server.hangs = True
    file = locustfile(tmp_path, ONE.format(base="GrpcPredictUser", payloads="", golden="off"))
    ends = ("-t", "2s", "--stop-timeout", "1")
    run = headless(server, "--host", server.grpc_address, *ends, file=file, requests=sys.maxsize)
    assert run.returncode == 1
    assert table_of(run.stdout)[MODEL] == (4, 4)
    assert "abandoned without a response after " in run.stdout


def test_shapes_events_and_files_of_locust_work_with_these_classes(server: Doubling, tmp_path: Path) -> None:
    text = ONE.format(base="GrpcPredictUser", payloads="", golden="off") + (
        """
    from locust import LoadTestShape, constant_throughput, events

    One.wait_time = constant_throughput(50)
    SEEN = {}

    class Steps(LoadTestShape):
        def tick(self):
            return None if self.get_run_time() > 4 else (1 if self.get_run_time() < 2 else 3, 10)

    @events.request.add_listener
    def note(request_type, name, response_time, response_length, exception, start_time, **_):
        assert response_time > 0 and response_length > 0 and exception is None and start_time > 0
        SEEN[request_type, name] = SEEN.get((request_type, name), 0) + 1

    @events.quitting.add_listener
    def show(**_):
        print("seen", SEEN)
    """
    )
    stats = tmp_path / "stats"
    run = headless(
        server,
        *("--host", server.grpc_address, "--csv", str(stats)),
        file=locustfile(tmp_path, text),
        requests=sys.maxsize,
        users=(),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    total = requests_in(run.stdout)["total"]
    assert total == len(server.rows) > 0
    assert f"seen {{('gRPC', 'doubling'): {total}}}" in run.stdout
    assert " s, 3 users" in " ".join(run.stdout.split())
    assert "gRPC,doubling," in stats.with_name("stats_stats.csv").read_text()


@pytest.mark.slow
def test_the_web_page_offers_the_classes_and_runs_the_chosen_one(server: Doubling, tmp_path: Path) -> None:
    with web_page("--class-picker", "--host", both(server), file=locustfile(tmp_path, CLASSES)) as page:
        assert page.start(host=both(server), user_classes="Large")["success"]
        assert page.wait_for("large")["num_failures"] == 0
        page.stop()
    assert list(requests_in(page.output)) == ["large", "total"]
    assert set(server.rows) == {3, 4}
