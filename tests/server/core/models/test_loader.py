"""Tests for the details of a version: signatures, queue, costs."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.console_house import ID, ConsoleHouse
from tests.support.ensembles import StepModels, make_ensemble
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.loader import VersionDetails
from tpuserve_server.core.models.model_record import ModelStates
from tpuserve_server.core.terms.server_state import ServerState
from tpuserve_server.core.terms.types import ServableId, State


@pytest.fixture
def house() -> Iterator[ConsoleHouse]:
    made = ConsoleHouse()
    yield made.bring_up()
    made.stop()


async def test_waiting_requests_are_counted_by_signature_and_version(house: ConsoleHouse) -> None:
    assert house.service.queued() == {ID: QueueDepth()}
    house.servable.gate.clear()
    running = asyncio.create_task(house.predict())
    await asyncio.to_thread(house.servable.entered.acquire)
    waiting = [asyncio.create_task(house.predict(rows)) for rows in (1, 2)]
    # One step of each task queues its request.
    await asyncio.sleep(0)
    details = house.service.details(ID)
    assert details is not None
    assert details.queued == {"serving_default": QueueDepth(2, 3)}
    assert house.service.queued() == {ID: QueueDepth(2, 3)}
    house.servable.gate.set()
    await asyncio.gather(running, *waiting)
    assert house.service.queued() == {ID: QueueDepth()}


def test_a_version_that_does_not_serve_has_no_details(house: ConsoleHouse) -> None:
    assert house.service.details(ServableId("m", 4)) is None
    house.registry.unloading(ID)
    assert house.service.details(ID) is None


def test_states_and_labels(house: ConsoleHouse) -> None:
    house.registry.assign_labels("m", {"stable": 3})
    assert house.service.states() == {"m": ModelStates({3: State.AVAILABLE}, {"stable": 3})}
    assert house.service.state() is ServerState.READY


def test_a_server_starts_until_its_models_have_loaded() -> None:
    house = ConsoleHouse()
    assert house.service.state() is ServerState.STARTING
    house.bring_up()
    assert house.service.state() is ServerState.READY
    house.stop()


def test_an_ensemble_has_the_signature_of_its_steps_while_they_serve() -> None:
    models = StepModels()
    models.add("a")
    models.add("b", labels=("cat", "dog"))
    models.add_ensemble("chain", make_ensemble("a x=image -> y=twice", "b x=twice -> y=fourfold"))
    chain = ServableId("chain", 1)
    details = models.service.details(chain)
    assert details is not None
    assert (details.is_ensemble, details.labels, details.path) == (True, ("cat", "dog"), None)
    assert [[*signature.inputs] for signature in details.signatures.values()] == [["image"]]
    assert models.service.queued()[chain] == QueueDepth()
    # The details hold no step.
    models.remove("b")
    models.wait_released("b")
    assert models.service.details(chain) == VersionDetails(is_ensemble=True)
    models.stop()
