import json
import random
from pathlib import Path

import pytest

from benchmarks.harness.load_tools import ToolFailed, parse_h2load, parse_wrk, percentile
from benchmarks.harness.measurement import measure, parse_served, write_bodies
from benchmarks.harness.targets import PROTOCOLS, echoes
from tests.support.optional import needs

H2LOAD = """
finished in 2.00s, 11416.00 req/s, 3.67MB/s
requests: 22832 total, 22864 started, 22832 done, 22830 succeeded, 2 failed, 0 errored, 0 timeout
status codes: 22830 2xx, 0 3xx, 0 4xx, 2 5xx
traffic: 3.67MB (3848720) total, 1.20MB (1258000) headers (space savings 61.08%), 1.09MB (1141500) data
"""


def test_h2load_percentiles_come_from_the_log_of_successful_requests() -> None:
    latencies = list(range(1, 1001))
    random.Random(20).shuffle(latencies)
    log = "\n".join([*(f"1795251932250603\t200\t{value}" for value in latencies), "1795251932250603\t-1\t90000000"])
    load = parse_h2load(H2LOAD, log, 0.5)
    assert (load.requests, load.failures, load.elapsed_s) == (22832, 2, 2.0)
    assert load.rate_per_s == 11415
    assert load.data_bytes == 1_141_500
    assert (load.p50_ms, load.p99_ms) == (0.5, 0.99)


def test_h2load_without_an_answer_is_an_error() -> None:
    with pytest.raises(ToolFailed, match="finished no request"):
        parse_h2load("finished in 3.00s, 0.00 req/s\nrequests: 0 total, 0 started, 0 done, 0 succeeded", "", 0)


def test_h2load_with_errors_as_answers_is_an_error() -> None:
    # h2load counts a response with HTTP status 200 and a grpc-status of an error as a success.
    with pytest.raises(ToolFailed, match=r"22830 responses have 0 bytes\. The server answered with errors"):
        parse_h2load(H2LOAD.replace("1.09MB (1141500) data", "0B (0) data"), "", 0)


def test_wrk_figures_come_from_the_scripts_line() -> None:
    figures = {"requests": 100, "failures": 10, "elapsed_us": 2_000_000, "p50_us": 917, "p99_us": 47_520}
    load = parse_wrk(f"Running 2s test\nRESULT {json.dumps(figures)}\n", 0.5)
    assert (load.rate_per_s, load.p50_ms, load.p99_ms) == (45, 0.917, 47.52)
    with pytest.raises(ToolFailed, match="Connection refused"):
        parse_wrk("unable to connect: Connection refused", 0)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 2), (75, 3), (99, 4), (100, 4)])
def test_percentile_is_the_nearest_rank(percent: float, value: int) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_served_requests_are_counted_by_protocol_and_outcome() -> None:
    page = "\n".join(
        f'tpuserve_requests_total{{code="{code}",method="{method}",model_name="mlp",protocol="{protocol}"}} {value}'
        for code, method, protocol, value in [
            ("OK", "Predict", "grpc", "1e+06"),
            ("CANCELLED", "Predict", "grpc", "3.0"),
            ("UNAVAILABLE", "Predict", "grpc", "2.0"),
            ("OK", "predict", "rest", "7.0"),
            ("OK", "GetModelMetadata", "grpc", "5.0"),
        ]
    )
    served = parse_served(page, "grpc")
    assert (served.ok, served.not_ok) == (1_000_000, 5)
    assert parse_served(page, "rest").ok == 7


@needs("h2load", "wrk")
@pytest.mark.slow
def test_the_load_generators_drive_the_echo(tmp_path: Path) -> None:
    bodies = write_bodies(tmp_path)
    with echoes(tmp_path) as targets:
        for protocol in PROTOCOLS:
            point = measure(targets[protocol], 16, 1, bodies, tmp_path)
            assert point.load.failures == 0
            assert point.load.requests > 0
            assert 0 < point.load.p50_ms <= point.load.p99_ms
            assert point.cpu_s_per_1000 > 0
        trees = [target.tree for target in targets.values()]
        assert all(tree.memory().rss_mb >= tree.memory().pss_mb > 1 for tree in trees)
    assert not any(tree.members for tree in trees)
