"""Tests for the life of an application under a supervisor, in this process: orders, starts and ends."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, replace

import pytest
from tests.server.hosts.envoy.test_entry import OPTIONS, Recorded
from tpuserve_server.hosts.envoy.channel import Channel, ChildSetup
from tpuserve_server.hosts.envoy.lifecycle import ORPHANED, Leaving, Lifecycle

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.application import Listening


class Life:
    """A lifecycle whose ports wait for its models, the supervisor's end of its channel, and its exit codes."""

    def __init__(self, lifecycle: Lifecycle[Recorded], supervisor: Channel, exits: list[int]) -> None:
        self.lifecycle = lifecycle
        self.application = lifecycle.application
        self.supervisor = supervisor
        self.heard = supervisor.messages()
        self.exits = exits
        self.announced: list[Listening] = []


@pytest.fixture
async def life(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Life]:
    exits: list[int] = []
    # A real exit would end the tests.
    monkeypatch.setattr(os, "_exit", exits.append)
    ours, theirs = socket.socketpair()
    setup = ChildSetup(replace(OPTIONS, opens_when_ready=True), "", -1, -1, os.getcwd(), {})
    announced: list[Listening] = []
    lifecycle = await Lifecycle.start(Recorded, await Channel.over(theirs), setup, announced.append)
    assert lifecycle is not None
    supervisor = await Channel.over(ours)
    life = Life(lifecycle, supervisor, exits)
    life.announced = announced
    yield life
    await supervisor.close()
    await lifecycle.end(0)


async def test_ports_open_once_the_application_is_ready(life: Life) -> None:
    opening = asyncio.create_task(life.lifecycle.open())
    assert await anext(life.heard) == {"type": "loading"}
    assert not opening.done()
    life.application.gate.set()
    assert await opening
    life.lifecycle.report_ready()
    assert await anext(life.heard) == {"type": "ready"}
    assert life.exits == []


async def test_drain_before_the_ports_open_ends_the_process(life: Life) -> None:
    life.supervisor.send("drain")
    assert not await life.lifecycle.open()
    assert life.exits == [0]
    assert life.application.told == ["start", "stop"]


async def test_supervisor_that_is_gone_before_the_ports_open_ends_the_process(life: Life) -> None:
    await life.supervisor.close()
    assert not await life.lifecycle.open()
    assert life.exits == [ORPHANED]


async def test_application_that_will_never_be_ready_ends_the_process_with_the_reason(life: Life) -> None:
    life.application.doomed.set()
    assert not await life.lifecycle.open()
    assert [await anext(life.heard), await anext(life.heard)] == [
        {"type": "loading"},
        {"type": "failed", "why": "Nothing will ever be served."},
    ]
    assert life.exits == [1]


async def test_orders_reach_the_application_before_the_drain(life: Life) -> None:
    listening, status = Listening(grpc="127.0.0.1:1"), CertificateStatus({"server": 1.0}, "")
    life.supervisor.send("announce", listening=asdict(listening))
    life.supervisor.send("certificates", status=asdict(status))
    life.supervisor.send("reload")
    life.supervisor.send("drain")
    assert await life.lifecycle.leaving() is Leaving.ORDERED
    assert life.application.told == ["start", listening, status, "reload"]
    assert life.announced == [listening]


async def test_damage_is_reported_before_the_process_leaves(life: Life) -> None:
    life.application.hung.set()
    assert await life.lifecycle.leaving() is Leaving.REPLACED
    assert await anext(life.heard) == {"type": "replace", "damage": "hung run", "why": "a run has taken too long"}


async def test_loss_of_the_supervisor_is_a_reason_to_leave(life: Life) -> None:
    await life.supervisor.close()
    assert await life.lifecycle.leaving() is Leaving.ORPHANED
