"""Tests for figures from a server's metrics pages, rendered by the server's own code, and for watched runs."""

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI, Response

from tests.e2e.running_server import RunningServer, run_server
from tests.loadtests.doubling_server import MODEL, Doubling, serving, serving_http
from tests.loadtests.metrics_pages import MetricsPages
from tests.support import forked_command
from tests.support.measured import finish
from tests.support.saved_models import save_mlp
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.monitoring.metrics_page import Buckets, NoPage, Page, Served
from tpuserve_loadtests.monitoring.server_side import Scrape, ServerSide, draw_server_side, read_stretch
from tpuserve_loadtests.monitoring.watched import cached_responses, counts_differ, latency_parts
from tpuserve_server.core.models.response_cache import ResponseCaches
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId

BUSY_IS_FINE = ("--generator-limit", "note")
SERVED = Served((("m", None),))
OTHER = ServableId("m", 4)


def test_what_was_counted_before_the_first_page_is_no_part_of_the_run() -> None:
    server = MetricsPages()
    server.answer(5.0, run_s=5.0, latency_s=10.0)
    server.read(0.0)
    server.answer(0.001, 0.003, run_s=0.020, latency_s=0.030)
    server.answer(0.004, run_s=0.010, latency_s=0.030)
    server.read(2.0)
    seen = draw_server_side([read_stretch(server.scrapes, SERVED)])
    request, queue, execution = seen.phases
    assert (request.count, queue.count, execution.count) == (3, 3, 2)
    assert request.mean_ms == pytest.approx(30)
    assert queue.mean_ms == pytest.approx(8 / 3)
    assert execution.mean_ms == pytest.approx(15)
    # Two requests waited for a batch of 20 ms, one for a batch of 10 ms.
    assert seen.execution_ms == pytest.approx(50 / 3)
    assert seen.batch_rows == 1.5
    assert seen.padding_share == pytest.approx((0.5 + 0.75) / 2)
    assert seen.executing == pytest.approx(0.030 / 2)
    assert seen.answers == {"OK": 3}


def test_the_timeline_has_a_moment_between_each_two_pages() -> None:
    server = MetricsPages()
    for at_s, run_s in ((0.0, 0.010), (1.0, 0.020), (3.0, 0.0)):
        server.read(at_s)
        server.answer(0.001, run_s=run_s, latency_s=0.030)
    seen = draw_server_side([read_stretch(server.scrapes, SERVED)])
    assert [(moment.at_s, moment.seconds, moment.rate_per_s) for moment in seen.timeline] == [(0, 1, 1), (1, 2, 0.5)]
    assert [moment.execution_ms for moment in seen.timeline] == [pytest.approx(10), pytest.approx(20)]


def test_another_version_and_another_model_are_left_out() -> None:
    server = MetricsPages()
    server.read(0.0)
    server.answer(0.001, run_s=0.010, latency_s=0.020)
    server.answer(0.5, run_s=0.5, latency_s=1.0, version=4)
    finish(server.metrics, model="other", version=1)
    server.read(1.0)
    seen = draw_server_side([read_stretch(server.scrapes, Served((("m", 3),)))])
    assert [(phase.name, phase.count) for phase in seen.phases] == [("request", 1), ("queue wait", 1), ("execution", 1)]
    # Upstream's metric of a request's own execution covers both versions, so the mean of the batches is used.
    assert seen.execution_ms == pytest.approx(10)
    assert draw_server_side([read_stretch(server.scrapes, SERVED)]).answers == {"OK": 2}
    several = Served((("m", None), ("m", 3), ("other", None)))
    assert draw_server_side([read_stretch(server.scrapes, several)]).answers == {"OK": 3}


def test_refusals_are_counted_by_reason_and_answers_by_code() -> None:
    server = MetricsPages()
    server.metrics.task_dropped(servable=OTHER, reason="queue_full")
    server.read(0.0)
    for reason in ("queue_full", "queue_full", "expired"):
        server.metrics.task_dropped(servable=OTHER, reason=reason)
    finish(server.metrics, code=Code.RESOURCE_EXHAUSTED)
    server.read(1.0)
    seen = draw_server_side([read_stretch(server.scrapes, SERVED)])
    assert seen.refused == {"queue_full": 2, "expired": 1}
    assert seen.answers == {"RESOURCE_EXHAUSTED": 1}
    assert seen.phases == ()


def test_responses_from_the_cache_are_counted_and_noted() -> None:
    server = MetricsPages()
    responses = ResponseCaches().open(ServableId("m", 3), 1000)
    server.metrics.cache_opened(servable=ServableId("m", 3), responses=responses)
    server.read(0.0)
    assert responses.find(b"key") is None
    server.read(1.0)
    responses.store(b"key", {})
    for _ in range(3):
        assert responses.find(b"key") is not None
    server.read(2.0)
    missed, both = (draw_server_side([read_stretch(server.scrapes[:count], SERVED)]) for count in (2, 3))
    assert (missed.cached_share, cached_responses(missed)) == (0, "")
    assert both.cached_share == 0.75
    assert "75 % of the answers came from the server's response cache" in cached_responses(both)


def test_the_servers_process_is_seen() -> None:
    server = MetricsPages()
    server.read(0.0)
    sum(range(10**6))
    server.read(0.5)
    seen = draw_server_side([read_stretch(server.scrapes, SERVED)])
    assert seen.cpu_cores is not None
    assert seen.memory_bytes is not None
    assert seen.peak_memory_bytes is not None
    assert 10e6 < seen.memory_bytes <= seen.peak_memory_bytes


def test_tensorflow_serving_tells_less() -> None:
    server = MetricsPages(upstream=True)
    server.answer(5.0, run_s=5.0, latency_s=10.0)
    server.read(0.0)
    server.answer(0.001, 0.003, run_s=0.020, latency_s=0.030)
    server.read(1.0)
    seen = draw_server_side([read_stretch(server.scrapes, SERVED)])
    assert [phase.name for phase in seen.phases] == ["request", "queue wait"]
    assert seen.execution_ms == pytest.approx(20)
    assert seen.batch_rows == 2
    assert seen.padding_share == 0.5
    assert (seen.cpu_cores, seen.peak_memory_bytes, seen.executing) == (None, None, None)
    assert seen.answers == {"OK": 2}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("process_start_time_seconds 1\ntpuserve_x 1\n", "process_start_time_seconds 2\ntpuserve_x 1\n"),
        (":tensorflow:serving:request_latency_count 9\n", ":tensorflow:serving:request_latency_count 2\n"),
    ],
)
def test_a_server_that_was_restarted_is_told(earlier: str, later: str) -> None:
    with pytest.raises(NoPage, match="restarted"):
        read_stretch([Scrape(0.0, earlier), Scrape(1.0, later)], SERVED)


@pytest.mark.parametrize(
    "text", ["", "<html>not found</html>", "node_cpu_seconds_total 5\n", "tpuserve_batch_rows_sum x"]
)
def test_what_is_no_page_of_a_model_server_is_refused(text: str) -> None:
    with pytest.raises(NoPage):
        Page.parse(text)


def test_a_percentile_is_prometheus_own() -> None:
    buckets = Buckets({1.0: 10.0, 2.0: 30.0, 4.0: 40.0, math.inf: 40.0}, 60.0)
    assert [buckets.percentile(percent) for percent in (0, 12.5, 25, 50, 75, 100)] == [0, 0.5, 1, 1.5, 2, 4]
    assert Buckets({1.0: 0.0, math.inf: 5.0}, 50.0).percentile(99) == 1.0
    assert Buckets({1.0: 0.0, math.inf: 0.0}, 0.0).percentile(99) is None


# A second with ten requests of 50 ms each, by the client's clock.
def client_side(requests: int = 10) -> Measured:
    load = Load(1.0, 0.0, users=1)
    recorder = Recorder(["grpc"], load)
    for number in range(requests):
        recorder.record("grpc", number / requests, number / requests + 0.050, None)
    return Measured(load, recorder, 1.0, (0.1,))


def server_side(requests: int = 10) -> ServerSide:
    server = MetricsPages()
    server.read(0.0)
    for _ in range(requests):
        server.answer(0.005, run_s=0.020, latency_s=0.030)
    server.read(1.0)
    return draw_server_side([read_stretch(server.scrapes, SERVED)])


def test_the_parts_add_up_to_the_clients_latency() -> None:
    parts = latency_parts([client_side()], server_side())
    expected = {
        "network, connections and client": 20.0,
        "queue wait": 5.0,
        "execution, with stacking and padding": 20.0,
        "elsewhere in the server": 5.0,
    }
    # The client's histogram has three digits.
    assert {part.name: part.mean_ms for part in parts} == pytest.approx(expected, abs=0.05)
    assert sum(part.share for part in parts) == pytest.approx(1)


def test_other_clients_and_other_servers_are_noticed() -> None:
    assert counts_differ([client_side(1000)], server_side(1000)) == ""
    assert "other clients use the server" in counts_differ([client_side(100)], server_side(300))
    assert "answered 300 of 1,000" in counts_differ([client_side(1000)], server_side(300))


# Whole runs.


def loadtest(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", *arguments, *BUSY_IS_FINE)


def measured(*arguments: str) -> dict[str, Any]:
    run = loadtest(*arguments, "--json")
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("watched")
    save_mlp(folder / "m" / "1")
    with run_server(folder / "m", folder / "log", "--enable_batching=true") as server:
        yield server


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_a_real_servers_phases_add_up_and_it_counted_every_request(running: RunningServer) -> None:
    addresses = ("--grpc", running.grpc, "--rest", running.rest)
    report = measured("m", *addresses, "--users", "4", "--duration", "2", "--warm-up", "0")
    server = report["server"]
    phases = {phase["name"]: phase for phase in server["phases"]}
    requests = report["total"]["requests"]
    assert requests == phases["request"]["count"] == phases["queue wait"]["count"] == server["answers"]["OK"]
    assert 0 < phases["execution"]["count"] <= requests
    parts = {part["name"]: part["mean_ms"] for part in report["latency_parts"]}
    # Each client latency exceeds the server's time for that request, so the means do too.
    assert parts["network, connections and client"] > 0
    assert phases["queue wait"]["mean_ms"] + server["execution_ms"] <= phases["request"]["mean_ms"]
    assert 0.1 < server["cpu_cores"] < 64
    assert server["peak_memory_bytes"] > 50e6
    assert 1 <= len(server["timeline"]) <= 2  # one reading a second; a busy machine may delay one past the end
    assert not any("server" in note for note in report["notes"])


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_a_sweep_tells_what_more_load_does_in_the_server(running: RunningServer) -> None:
    page = f"{running.rest}/metrics"
    options = (
        "--grpc",
        running.grpc,
        "--users",
        "1,16",
        "--duration",
        "700ms",
        "--warm-up",
        "100ms",
        "--server-metrics",
        page,
    )
    run = loadtest("sweep", "m", *options, "--json")
    assert run.returncode == 0, run.stderr
    alone, crowd = (step["server"] for step in json.loads(run.stdout)["steps"])
    # A single user waits for each response, so two requests are never in one batch.
    assert alone["batch_rows"] == 1
    assert crowd["batch_rows"] > 1
    assert alone["answers"].keys() == crowd["answers"].keys() == {"OK"}


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_comparison_without_a_load_has_the_current_rate_of_the_server(running: RunningServer) -> None:
    users = ["run", "m", "--grpc", running.grpc, "--rate", "40", "--duration", "10", "--server-metrics", "off"]
    options = ["--rounds", "3", "--duration", "0.2", "--warm-up", "0", "--unclear", "note"]
    with ThreadPoolExecutor(1) as pool:
        current = pool.submit(loadtest, *users)
        run = loadtest("compare", "m", running.grpc, running.grpc, *options, "--server-metrics", running.rest)
        current.result()
    found = re.search(r"Open load of ([\d.]+) requests/s: the current rate of the server", run.stderr)
    assert found, run.stderr
    assert 1 <= float(found[1]) < 80


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_a_comparison_tells_of_each_side_of_runs_of_half_a_second(running: RunningServer) -> None:
    options = ["--users", "2", "--rounds", "3", "--duration", "0.4", "--warm-up", "0.2"]
    options += ["--least-effect", "9", "--unclear", "note"]
    pages = f"{running.rest},{running.rest}/metrics"
    run = loadtest("compare", "m", f"{running.grpc}@1", running.grpc, *options, "--server-metrics", pages, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    for side in report["sides"].values():
        queue = next(phase for phase in side["server"]["phases"] if phase["name"] == "queue wait")
        # Two requests are in flight during the first scrapes, which may count them in part.
        assert queue["count"] == pytest.approx(side["server"]["answers"]["OK"], abs=12)
        assert queue["count"] > 0
        assert "network, connections and client" in {part["name"] for part in side["latency_parts"]}
    assert report["server_notes"] == []


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_a_search_tells_what_one_user_and_each_rate_did_in_the_server(running: RunningServer) -> None:
    options = ("--slo", "p50<=5s", "--from", "40", "--to", "50", "--duration", "0.5", "--warm-up", "0")
    run = loadtest("search", "m", "--grpc", running.grpc, *options, "--server-metrics", running.rest, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["alone"]["server"]["batch_rows"] == 1
    assert [probe["rate_per_s"] for probe in report["probes"]] == [40, 50]
    for probe in report["probes"]:
        assert probe["server"]["answers"]["OK"] > 0
        assert probe["latency_parts"]


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_a_scenario_of_mlperf_tells_what_its_queries_did_in_the_server(running: RunningServer) -> None:
    options = ("--scenario", "multi-stream", "--duration", "700ms", "--warm-up", "0", "--server-metrics", running.rest)
    run = loadtest("mlperf", "m", "--grpc", running.grpc, *options, "--json")
    assert run.returncode == 99, run.stderr  # too short for the rules
    report = json.loads(run.stdout)
    # Queries of eight samples, one at a time.
    assert report["server"]["batch_rows"] == 8
    assert report["server"]["answers"]["OK"] == report["queries"]
    assert "execution, with stacking and padding" in {part["name"] for part in report["latency_parts"]}
    assert report["notes"] == []


@pytest.mark.slow
@pytest.mark.xdist_group("watched")
def test_the_table_tells_where_the_time_went_also_for_several_processes(running: RunningServer) -> None:
    page = f"{running.rest}/metrics"
    options = ("--users", "4", "--duration", "1", "--warm-up", "0", "--processes", "2", "--server-metrics", page)
    run = loadtest("m", "--grpc", running.grpc, *options)
    assert run.returncode == 0, run.stderr
    assert "Time breakdown" in run.stdout
    for part in ("network, connections and client", "queue wait", "execution, with stacking and padding"):
        assert part in run.stdout
    assert "server: batches of " in run.stdout
    assert "peak memory " in run.stdout


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ((), "set --server-metrics"),
        (("--server-metrics", "{rest}"), "has no metrics page (/metrics: HTTP 404"),
        (("--server-metrics", "http://127.0.0.1:9/metrics"), "no server metrics: http://127"),
        (("--server-metrics", "off"), ""),
    ],
)
def test_a_server_without_metrics_is_a_note(options: tuple[str, ...], note: str) -> None:
    with serving(Doubling()) as server:
        chosen = [option.format(rest=server.rest_url) for option in options]
        report = measured(
            MODEL, "--grpc", server.grpc_address, "--users", "2", "--duration", "0.3", "--warm-up", "0", *chosen
        )
    assert report["server"] is None
    assert report["latency_parts"] == []
    notes = [found for found in report["notes"] if "server" in found]
    assert len(notes) == bool(note)
    assert all(note in found for found in notes)


def test_a_page_that_goes_away_leaves_what_it_told_until_then() -> None:
    watched, app = MetricsPages(model=MODEL), FastAPI()
    app.get("/metrics")(lambda: page(watched))
    with serving(Doubling()) as server, serving_http(app) as port:
        addresses = ("--grpc", server.grpc_address, "--server-metrics", f"http://127.0.0.1:{port}")
        report = measured(MODEL, *addresses, "--users", "1", "--duration", "5", "--warm-up", "0")
    # The watch read the page to check that it exists, at the start and after a second, but not at the end.
    assert report["server"]["answers"] == {"OK": 1}
    (note,) = [note for note in report["notes"] if "server" in note]
    lost = r"the server's metrics could not be read at the end \(HTTP 503, 0 bytes\)"
    assert re.fullmatch(rf"{lost}: they cover the first [1-4]\.\d s", note)


def page(server: MetricsPages) -> Response:
    """Return the page of a server that serves one request between scrapes and fails from the fourth scrape on."""
    server.answer(0.001, run_s=0.001, latency_s=0.003)
    server.read(0.0)
    return Response(status_code=503) if len(server.scrapes) > 3 else Response(server.scrapes[-1].text)


def test_one_page_of_metrics_is_not_taken_for_two_servers() -> None:
    run = loadtest("compare", MODEL, "a:8500", "b:8500", "--server-metrics", "http://a:8501")
    assert run.returncode == 2
    assert "A and B are different servers. Set the metrics pages of both, as URL,URL." in run.stderr


def test_what_is_no_page_is_exit_code_2_before_anything_is_asked() -> None:
    run = loadtest(MODEL, "--server-metrics", "localhost:8501")
    assert run.returncode == 2
    assert "such as http://localhost:8501/metrics" in run.stderr
