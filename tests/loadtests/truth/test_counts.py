"""Tests that the load tester's counts equal those of the server's log: requests and refusals."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.loadtests.truth.cases import OIP, REFUSALS, REFUSED_STREAMS
from tests.loadtests.truth.script import Script
from tests.loadtests.truth.scripted_server import serving
from tests.loadtests.truth.tester import MODEL, Case, loadtest, measure
from tests.loadtests.truth.verdicts import assert_true

_COLD: Final = ("--duration", "30s", "--warm-up", "0")
# A resolver that knows one more name. Nothing listens at its second address.
_TWO_ADDRESSES: Final = """
import socket
import gevent.socket

def resolve(host, port, *options, real=socket.getaddrinfo, **more):
    if host != "replicas.test":
        return real(host, port, *options, **more)
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.1", "127.0.0.2")]

socket.getaddrinfo = gevent.socket.getaddrinfo = resolve
from tpuserve_loadtests.cli import main
main()
"""


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refusals_are_counted_by_kind_and_protocol(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert {"sent", "errors", "grpc sent", "rest errors", "unavailable", "internal", "exhausted"} <= row.counts.keys()
    assert row.counts["errors"].true
    assert_true([row])


@pytest.mark.parametrize("case", REFUSED_STREAMS, ids=lambda case: case.name)
def test_a_refused_stream_is_sent_once_more_and_counted(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    # With all streams refused, the server receives each of the 60 requests twice. With every third, 29 come twice.
    assert row.counts["sent"].true == (120 if case.exit_code else 89)
    assert_true([row])


@pytest.mark.parametrize("processes", [1, 2])
def test_connections_carry_equal_numbers_of_requests(processes: int) -> None:
    with serving(Script(service_s=0.01)) as server:
        options = ("--grpc", server.grpc, "--connections", "4", "--processes", str(processes))
        said = loadtest("run", MODEL, *options, "--users", "8", "--requests", "80", *_COLD)
        log = server.end()
    assert sorted(Counter(entry.connection for entry in log.entries).values()) == [20, 20, 20, 20]
    assert said.document["total"]["requests"] == 80


def test_a_limit_of_rest_connections_holds() -> None:
    with serving(Script(service_s=0.01)) as server:
        options = ("--rest", server.rest, "--connections", "2", "--users", "8", "--requests", "80")
        loadtest("run", MODEL, *options, *_COLD)
        log = server.end()
    assert len({entry.connection for entry in log.entries}) == 2


def test_a_name_with_two_addresses_shows_what_each_answered() -> None:
    with serving(Script(service_s=0.001)) as server:
        port = server.rest.rpartition(":")[2]
        options = (
            "--rest",
            f"http://replicas.test:{port}",
            "--users",
            "1",
            "--requests",
            "40",
            *_COLD,
            "--golden",
            "off",
            "--json",
        )
        ended = subprocess.run(
            [sys.executable, "-c", _TWO_ADDRESSES, "run", MODEL, *options, "--server-metrics", "off"],
            capture_output=True,
            text=True,
        )
        log = server.end()
    document = json.loads(ended.stdout)
    counts = {name: (line["requests"], line["failures"]) for name, line in document["replicas"].items()}
    assert counts == {"127.0.0.1": (20, 0), "127.0.0.2": (20, 20)}
    assert len(log) == 20
    assert "the replica 127.0.0.2 answered 0 of 20 requests, less than half of an even share" in document["notes"]


def test_a_run_of_cached_responses_names_the_cache() -> None:
    with serving(Script(service_s=0.02, cached_s=0.001)) as server:
        load = ("--users", "2", "--requests", "200", *_COLD)
        said = loadtest("run", MODEL, "--rest", server.rest, "--server-metrics", "auto", *load)
        log = server.end()
    share = 1 - len({entry.digest for entry in log.entries}) / len(log)
    assert said.document["server"]["cached_share"] == pytest.approx(share)
    assert any(f"{100 * share:.3g} % of the answers came from" in note for note in said.document["notes"])


def test_refusals_of_the_open_inference_protocol_are_counted(tmp_path: Path) -> None:
    row = measure(OIP, tmp_path)
    assert {"oip_grpc sent", "oip_http errors", "unavailable", "internal", "exhausted"} <= row.counts.keys()
    assert row.counts["oip_http sent"].true
    assert_true([row])
