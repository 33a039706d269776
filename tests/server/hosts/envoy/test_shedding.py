"""Tests for the share of requests that Envoy refuses under overload."""

import asyncio
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_device import RecordingMetrics
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin
from tpuserve_server.hosts.envoy.overload import INFERENCE_PATH
from tpuserve_server.hosts.envoy.shedding import AcceptedShare, Shedding
from tpuserve_server.hosts.envoy.shedding_filters import shedding_filters
from tpuserve_server.hosts.inference_paths import INFERENCE_METHODS


def accepted(offered: int, capacity: int, periods: int = 100) -> list[float]:
    """Return the share after each period with `offered` requests, of which the worker accepts up to `capacity`."""
    share = AcceptedShare()
    shares = []
    for _ in range(periods):
        seen = round(offered * share.share)
        share.update(seen, max(seen - capacity, 0))
        shares.append(share.share)
    return shares


@pytest.mark.parametrize("load", [2, 5, 10])
def test_the_share_settles_above_the_capacity(load: int) -> None:
    capacity = 120
    for share in accepted(load * capacity, capacity)[50:]:
        assert 1.1 < share * load < 1.6


def test_few_refusals_shed_nothing() -> None:
    assert set(accepted(40, 20)) == {1.0}


def test_the_share_recovers_within_seconds_after_an_overload() -> None:
    share = AcceptedShare()
    for _ in range(100):
        share.update(1000, 1000)
    assert share.refused_percent == 99
    for _ in range(30):
        share.update(10, 0)
    assert share.refused_percent == 0


def test_filters_match_inference_requests_with_a_timeout() -> None:
    grpc, rest = (each["typed_config"] for each in shedding_filters())
    assert [header["name"] for header in grpc["headers"]] == ["grpc-timeout", ":path"]
    assert [header["name"] for header in rest["headers"]] == ["x-tpuserve-timeout-ms", ":path"]
    assert grpc["abort"]["percentage"] == {"numerator": 0}


def test_paths_of_inference_are_known_to_the_rate_limit() -> None:
    path = re.compile(INFERENCE_PATH)
    for method in INFERENCE_METHODS:
        assert path.fullmatch(method)
    assert path.fullmatch("/v1/models/m/versions/3:predict?x=1")
    assert path.fullmatch("/v2/models/m/infer")
    for other in ("/healthz", "/grpc.health.v1.Health/Check", "/v1/models/m/metadata"):
        assert not path.fullmatch(other)


class RecordingAdmin(EnvoyAdmin):
    """An admin interface that records the share."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.percents: list[int] = []
        self.refusals = 0
        self.recovered = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def refuse(self, percent: int) -> None:
        self.percents.append(percent)
        if not percent:
            self._loop.call_soon_threadsafe(self.recovered.set)

    def refused(self) -> int:
        return self.refusals


class Refusing(OverloadGate):
    """A gate that refuses on demand."""

    def __init__(self) -> None:
        self.metrics = RecordingMetrics()
        super().__init__(tuple, self.metrics, SystemClock())
        self._begin: Callable[[], object] = lambda: None

    def subscribe(self, on_refused: Callable[[], object]) -> None:
        self._begin = on_refused

    def refuse(self, count: int) -> None:
        self.checked += count
        self.refused += count
        self._begin()


async def test_the_worker_orders_a_share_while_it_refuses_and_none_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tpuserve_server.hosts.envoy.shedding.PERIOD_S", 0.001)
    gate, admin = Refusing(), RecordingAdmin()
    Shedding(gate, admin)
    gate.refuse(1000)
    # The first period begins in the next step of the loop.
    await asyncio.sleep(0)
    gate.refuse(1000)
    async with asyncio.timeout(15):
        await admin.recovered.wait()
    assert admin.percents[0] == 30
    assert admin.percents[-1] == 0


async def test_refusals_of_envoy_are_counted_during_a_long_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuserve_server.hosts.envoy.shedding.PERIOD_S", 0.001)
    gate, admin = Refusing(), RecordingAdmin()
    Shedding(gate, admin)
    admin.refusals = 7
    async with asyncio.timeout(15):
        while not gate.metrics.refused["envoy"]:
            gate.refuse(1000)
            await asyncio.sleep(0.0005)
        await admin.recovered.wait()
    assert gate.metrics.refused["envoy"] == 7
    # Envoy gets an order only if the share has changed.
    assert all(before != after for before, after in itertools.pairwise(admin.percents))
