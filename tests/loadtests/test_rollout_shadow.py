"""Tests for versions that only a load, one protocol or one replica shows to be wrong or slow."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.loadtests.rollout_process import running_rollout
from tests.loadtests.rollout_proxies import GrpcProxy, spoiling_rest
from tests.loadtests.rollout_replicas import BAD, FILE, LIVE, NEW, Replica
from tests.support.saved_models import save_function
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group(__name__)]

RANDOM = 6

# Sixteen requests arrive together.
BURSTS = ("--arrivals", "bursts", "--burst", "16")


def wrong_in_batches(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Answer right with one or two requests in flight, and wrong above, because the server then batches them."""
    return {"y": 2 * x + tf.cast(tf.shape(x)[0] > 2, tf.float32)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Replica, Replica]]:
    """Start two servers of the same file."""
    root = tmp_path_factory.mktemp("shadow")
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    save_function(root / "m" / str(LIVE), lambda x: {"y": 2 * x}, spec)
    save_function(root / "m" / str(NEW), lambda x: {"y": x + x}, spec)
    save_function(root / "m" / str(BAD), wrong_in_batches, spec)
    save_function(root / "m" / str(RANDOM), lambda x: {"y": 2 * x + tf.random.uniform(tf.shape(x))}, spec)
    (root / FILE).write_text(f"""\
model_config_list {{
  config {{
    name: "m" base_path: "{root}/m" model_platform: "tensorflow"
    model_version_policy {{ all {{}} }}
    version_labels {{ key: "stable" value: {LIVE} }}
  }}
}}
""")
    with ExitStack() as stack:
        first, second = (Replica(root / FILE, root / f"log{number}", ("--enable_batching",)) for number in (1, 2))
        for each in (first, second):
            stack.enter_context(each.stack)
            each.start()
        yield first, second


def rolled_out(one: Replica, to: int, *arguments: str, execute: bool = True) -> tuple[int, dict[str, Any]]:
    command = ["m", "--to", str(to), "--model_config_file", str(one.file), *(["--execute"] if execute else [])]
    with running_rollout(*command, *arguments) as running:
        return running.finish()


def nothing_moved(fleet: tuple[Replica, ...]) -> bool:
    return "canary" not in fleet[0].file.read_text() and {each.answers() for each in fleet} == {LIVE}


@pytest.mark.parametrize("parity", ["--parity", "--no-parity"])
def test_a_version_that_is_wrong_above_two_requests_in_flight_never_gets_a_label(
    fleet: tuple[Replica, Replica], parity: str
) -> None:
    code, report = rolled_out(fleet[0], BAD, "--grpc", fleet[0].address, parity, *BURSTS)
    assert (code, report["outcome"]) == (1, "refused"), report
    assert [step["state"] for step in report["steps"]] == [*(["passed"] if parity == "--parity" else []), "failed"]
    detail = report["steps"][-1]["detail"]
    assert "answers of version 5 were wrong" in detail
    assert re.search(r"wrong response: output 'y' differs by 1 at \[0, \d\]: [\d.]+ instead of [\d.]+; ", detail)
    assert "too few for a result" in detail  # it ended with the first wrong round
    assert nothing_moved(fleet)


def test_a_version_that_is_wrong_only_over_rest_never_gets_a_label(fleet: tuple[Replica, Replica]) -> None:
    with spoiling_rest(fleet[0].server.rest, f"/versions/{NEW}:predict", from_in_flight=3) as url:
        code, report = rolled_out(fleet[0], NEW, "--grpc", fleet[0].address, "--rest", url, *BURSTS)
    assert (code, report["outcome"]) == (1, "refused"), report
    parity, shadow = report["steps"]
    assert parity["detail"].startswith("64 of 64 responses match")
    assert shadow["detail"].startswith("over gRPC and REST: ")
    assert "answers of version 4 were wrong over REST" in shadow["detail"]
    assert nothing_moved(fleet)


@pytest.mark.parametrize("gate", [("--fail-if", "rate>1"), ("--slo", "grpc.rate<=1")])
def test_an_absolute_gate_is_judged_before_any_label_moves(
    fleet: tuple[Replica, Replica], gate: tuple[str, str]
) -> None:
    code, report = rolled_out(fleet[0], NEW, "--grpc", fleet[0].address, *gate)
    assert (code, report["outcome"]) == (99, "refused"), report
    assert report["steps"][-1]["name"] == "shadow"
    assert "failed: " in report["steps"][-1]["detail"]
    assert "/s, fails if > 1" in report["steps"][-1]["detail"]
    assert nothing_moved(fleet)


@pytest.mark.parametrize(
    ("gate", "times", "short"),
    [
        ("p99.9>10s", (), "shadow"),
        ("grpc.p95>10s", ("--duration", "1s"), "canary"),
        ("p98>10s", ("--duration", "3s", "--canary-duration", "6s"), "soak"),
    ],
)
def test_a_load_with_too_few_requests_for_a_gate_is_no_evidence(
    fleet: tuple[Replica, Replica], gate: str, times: tuple[str, ...], short: str
) -> None:
    code, report = rolled_out(fleet[0], NEW, "--grpc", fleet[0].address, "--fail-if", gate, *times)
    assert (code, report["outcome"]) == (97, "refused" if short == "shadow" else "moved back"), report
    failed = next(step for step in report["steps"] if step["state"] == "failed")
    assert failed["name"] == short
    assert "not enough: " in failed["detail"]
    assert nothing_moved(fleet)


def test_values_of_a_version_that_answers_differently_are_not_compared(fleet: tuple[Replica, Replica]) -> None:
    options = ("--grpc", fleet[0].address, "--duration", "1s", "--fail-if", "p95>10s")
    code, report = rolled_out(fleet[0], RANDOM, *options, "--no-parity")
    assert (code, report["outcome"]) == (97, "moved back"), report  # the canary has too few requests
    shadow, *_ = report["steps"]
    note = "m version 6, grpc: The model answers the same request differently. Values are not compared."
    assert (shadow["state"], shadow["detail"].rpartition("; ")[2]) == ("passed", note)
    code, report = rolled_out(fleet[0], RANDOM, *options, execute=False)
    assert (code, report["outcome"]) == (99, "refused"), report
    assert "gRPC: only the new version answers the same request differently" in report["steps"][-1]["detail"]
    assert nothing_moved(fleet)


def test_a_canary_that_is_slow_on_one_replica_never_reaches_users(
    fleet: tuple[Replica, Replica], tmp_path: Path
) -> None:
    never = threading.Event()

    def route(request: bytes) -> str:
        if b"canary" in request and b"x" in request:
            never.wait(0.4)
        return fleet[1].address

    page = tmp_path / "rollout.html"
    with GrpcProxy(route).serving() as slow:
        replicas = ("--replicas", fleet[0].address, "--replicas", slow)
        code, report = rolled_out(fleet[0], NEW, *replicas, "--fail-if", "p50>300ms", "--html", str(page))
    assert (code, report["outcome"]) == (99, "moved back"), report
    assert [step["name"] for step in report["steps"]][-3:] == ["label canary", "canary", "labels back"]
    detail = report["steps"][-2]["detail"]
    assert f"{slow}: failed: p50 " in detail
    assert f"{fleet[0].address}: " in detail
    assert "requests of users are unknown: 0 of 2 replicas have a known metrics page" in detail
    assert "By replica" in page.read_text()
    assert nothing_moved(fleet)


def test_the_shadow_uses_each_protocol_that_users_use(fleet: tuple[Replica, Replica], tmp_path: Path) -> None:
    page = tmp_path / "rollout.html"
    x = np.ones((1, 4), np.float32)
    for address in (f"oip+grpc://{fleet[1].address}", f"oip+{fleet[1].server.rest}"):
        with Client(address) as client:
            client.predict("m", {"x": x}, version=LIVE)
    with Client(fleet[1].address) as client:
        client.predict("m", {"x": x}, version=LIVE)
    options = ("--grpc", fleet[1].address, "--rest", fleet[1].server.rest, "--html", str(page))
    code, report = rolled_out(fleet[1], NEW, *options, "--fail-if", "rate>1")  # it ends with the shadow
    assert (code, report["outcome"]) == (99, "refused"), report
    parity, shadow = report["steps"]
    assert parity["detail"].startswith("128 of 128 responses match")
    assert shadow["detail"].startswith("over gRPC, REST, OIP gRPC and OIP HTTP binary: ")
    assert "over OIP gRPC, 1 request over OIP HTTP binary, none over REST" in shadow["detail"]
    assert report["protocols"] == ["grpc", "rest", "oip_grpc", "oip_http"]
    assert {each["protocol"] for each in report["usage"]} == {"grpc", "oip_grpc", "oip_http"}
    assert "parity and shadow" in page.read_text()
    # A page without an address for the loads over REST.
    code, report = rolled_out(
        fleet[1], NEW, "--grpc", fleet[1].address, "--server-metrics", f"{fleet[1].server.rest}/metrics"
    )
    assert (code, report) == (2, {})
    assert nothing_moved(fleet)
