"""Faults of the link: no memory for a segment, a message that cannot be made, a front-end that stands still."""

import asyncio
import os
import resource
import socket

import numpy as np
import pytest

from tests.server.link.test_tasks_and_models import linked
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import ModelSpec
from tpuserve_server.engine import FrontEnds
from tpuserve_server.hosts.envoy.fleet_figures import FleetFigures
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.engine import EngineLink
from tpuserve_server.link.measuring import ShareReceiver
from tpuserve_server.link.publisher import EngineRules
from tpuserve_server.metrics.measurements import Measurements
from tpuserve_server.telemetry.slow_requests import SlowRequests


async def test_large_arrays_travel_in_messages_without_descriptors_for_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked() as link:
        wide = {"x": np.zeros((20_000, 2), np.float32)}
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The lowest free descriptor is the first that no file may have.
        probe = os.dup(0)
        os.close(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe, before[1]))
        try:
            with pytest.raises(InvalidArgument, match="20000"), link.service.acquire(ModelSpec("m")) as model:
                await model.predict(wide, Deadline.never())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        result, _ = await link.predict([[1, 2]])
        assert result.outputs["y"].tolist() == [[2, 4]]


async def test_message_that_cannot_be_made_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = (Connection(end) for end in socket.socketpair())
    ended, other_ended = asyncio.Event(), asyncio.Event()
    ours.start({}, ended.set)
    theirs.start({}, other_ended.set)

    def fail() -> None:
        raise MemoryError

    ours.collect(fail)
    async with asyncio.timeout(20):
        await ended.wait()
        await other_ended.wait()
    assert not ours.is_open
    assert "could not be made" in caplog.text


async def test_front_end_that_stands_still_does_not_hold_up_responses() -> None:
    """Let one front-end adopt no states: it greets the engine, and answers nothing."""
    async with linked() as link:
        rules = EngineRules(link.house.logs.has_log, is_oip_in_engine=False)
        metrics = Measurements()
        front_ends = FrontEnds(
            link.house.registry, rules, ShareReceiver(metrics, SlowRequests(), FleetFigures()), 1 << 20
        )
        ours, theirs = socket.socketpair()
        with theirs:
            still = EngineLink(Connection(ours), link.house.registry, rules, {}, lambda _: None)
            still.publisher.publish()
            front_ends._links.add(still)
            async with asyncio.timeout(20):
                await front_ends.synced()
            states = [still.publisher.is_synced]
            still.close()
            states.append(still.publisher.is_synced)
            assert states == [False, True]
