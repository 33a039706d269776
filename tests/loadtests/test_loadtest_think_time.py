"""Tests for the think time of closed loads."""

import json
from collections.abc import Iterator
from random import Random

import msgpack  # type: ignore[import-untyped]  # ships no annotations
import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.support import forked_command
from tpuserve_loadtests.arrivals.duration import ThinkTime
from tpuserve_loadtests.arrivals.load import Load

QUIET = (*UNRECORDED, "--generator-limit", "note", "--server-metrics", "off", "--warm-up", "0")


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def run(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", *arguments)


def test_texts_of_think_times() -> None:
    assert ThinkTime.parse("200ms") == ThinkTime(0.2)
    assert ThinkTime.parse(" Exponential( 2s ) ") == ThinkTime(2.0, is_exponential=True)
    assert str(ThinkTime(0.2)) == "think time 200 ms"
    assert str(ThinkTime(2.0, is_exponential=True)) == "exponential think time 2 s"


@pytest.mark.parametrize("text", ["", "0", "fast", "exponential", "exponential()", "uniform(1s)", "1s..2s"])
def test_other_texts_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="is not a think time"):
        ThinkTime.parse(text)


def test_exponential_pauses_have_their_mean_and_spread() -> None:
    random, think = Random(1), ThinkTime(0.2, is_exponential=True)
    drawn = np.array([think.draw_s(random) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(0.2, rel=0.05)
    assert drawn.std() == pytest.approx(0.2, rel=0.05)
    assert ThinkTime(0.2).draw_s(random) == 0.2


def test_workers_receive_the_think_time() -> None:
    load = Load(1.0, users=3, think=ThinkTime(0.1, is_exponential=True))
    assert Load.from_wire(msgpack.unpackb(msgpack.packb(load.to_wire()))) == load


@pytest.mark.parametrize("text", ["300ms", "exponential(300ms)"])
def test_users_pause_between_requests(server: Doubling, text: str) -> None:
    load = ("--users", "6", "--think-time", text, "--duration", "3s", *QUIET, "--json")
    ended = run("run", MODEL, "--grpc", server.grpc_address, *load)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    # Without pauses, 6 users would send thousands. A slow machine sends fewer.
    assert 6 <= report["total"]["requests"] == len(server.rows) <= 100
    assert report["think_time"]["mean_s"] == 0.3
    assert report["load"] == f"6 users, {ThinkTime.parse(text)}"
    assert not [note for note in report["notes"] if "abandoned" in note]


def test_a_long_think_time_does_not_delay_the_end(server: Doubling) -> None:
    load = ("--users", "2", "--think-time", "1h", "--requests", "1", *QUIET, "--json")
    ended = run("run", MODEL, "--grpc", server.grpc_address, *load)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["total"]["requests"] == len(server.rows) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "m", "--rate", "5", "--think-time", "1s"], "--think-time has no effect in an open load"),
        (["sweep", "m", "--rate", "5", "--think-time", "1s"], "--think-time has no effect in an open load"),
        (["soak", "m", "--rate", "5", "--think-time", "1s"], "--think-time has no effect in an open load"),
        (["run", "m", "--think-time", "quick"], "is not a think time"),
    ],
)
def test_invalid_think_times_are_usage_errors(arguments: list[str], complaint: str) -> None:
    ended = run(*arguments, "--grpc", "127.0.0.1:1")
    assert ended.returncode == 2
    assert complaint in ended.stderr
