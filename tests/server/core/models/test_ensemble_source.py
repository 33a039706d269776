"""Tests for ensembles in the configuration: when they load, what they wait for, and which version they are."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.configured_house import House
from tests.support.ensembles import ensemble_config, make_ensemble
from tests.support.fake_device import DOUBLE
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, Unknown
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, TensorSpec, VersionStatus

CHAIN = ensemble_config("chain", make_ensemble("a x=image -> y=twice", "b x=twice -> y=fourfold"))
INTEGERS = Signature(DOUBLE.name, {"x": TensorSpec("x", np.dtype(np.int32), None)}, DOUBLE.outputs)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, initial=("a", "b", "chain"))
    house.save("a", 1)
    yield house
    house.stop()


def wait_until(house: House, chain: list[tuple[int, State, str]]) -> None:
    """Wait until the versions of the ensemble have these states, and errors or reasons to wait that contain a text."""
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    def is_reached() -> bool:
        found = house.registry.statuses("chain")
        return len(found) == len(chain) and all(map(_agrees, found, chain))

    house.registry.subscribe(wake)
    with changed:
        assert changed.wait_for(is_reached, 10), house.registry.statuses("chain")


def _agrees(found: VersionStatus, wanted: tuple[int, State, str]) -> bool:
    number, state, text = wanted
    return (found.servable.version, found.state) == (number, state) and text in (found.waits or found.error)


def test_an_ensemble_waits_for_its_steps_and_says_for_which(house: House) -> None:
    house.start(house.config("a"), house.config("b"), CHAIN)
    wait_until(house, [(1, State.START, "not complete yet: step 2 (b): Model b has no version ready yet: its base")])
    assert "chain (version 1 is not complete yet: step 2 (b)" in house.service.why_not_ready()
    house.save("b", 4)
    wait_until(house, [(1, State.AVAILABLE, "")])
    assert house.service.is_ready()
    [status] = house.service.status(ModelSpec("chain"))
    assert status.notes == ("step 1 (a): image -> twice", "step 2 (b): twice -> fourfold")


def test_an_ensemble_whose_step_fails_for_good_fails_without_retries(house: House) -> None:
    (house.save("b", 4) / "4" / "bad").touch()
    house.start(house.config("a"), house.config("b"), CHAIN)
    wait_until(house, [(1, State.END, "Ensemble chain: step 2 (b) cannot run")])
    # The server is ready for the other models.
    assert house.service.is_ready()


def test_an_ensemble_that_failed_loads_when_its_step_is_repaired(house: House) -> None:
    house.save("b", 4)
    house.loader.signatures[ServableId("b", 4)] = {DOUBLE.name: INTEGERS}
    house.start(house.config("a"), house.config("b"), CHAIN)
    wait_until(house, [(1, State.END, "step 2 (b version 4) takes it as int32 any shape")])
    house.save("b", 5)
    wait_until(house, [(1, State.AVAILABLE, "")])


def test_versions_and_labels_of_steps_are_awaited(house: House) -> None:
    house.save("b", 3, 4)
    pinned = ensemble_config("chain", make_ensemble("a:stable x=1 -> y=2", "b:4 x=2 -> y=3"))
    labelled = house.config("a", {"stable": 2}, VersionPolicy.specific([1, 2]))
    house.start(labelled, house.config("b"), pinned)
    wait_until(house, [(1, State.START, "step 1 (a): Unrecognized servable version label: stable")])
    house.save("a", 2)
    wait_until(house, [(1, State.AVAILABLE, "")])


def test_a_label_whose_version_failed_fails_the_ensemble(house: House) -> None:
    (house.save("a", 2) / "2" / "bad").touch()
    house.save("b", 4)
    labelled = house.config("a", {"stable": 2}, VersionPolicy.specific([1, 2]))
    house.start(labelled, house.config("b"), ensemble_config("chain", make_ensemble("a:stable x=1 -> y=2")))
    wait_until(house, [(1, State.END, "Unrecognized servable version label: stable")])


def test_a_changed_ensemble_is_a_new_version_that_replaces_the_old_one(house: House) -> None:
    house.save("b", 4)
    house.start(house.config("a"), house.config("b"), CHAIN)
    wait_until(house, [(1, State.AVAILABLE, "")])
    house.apply(house.config("b"), CHAIN, house.config("a"))
    assert [status.servable.version for status in house.registry.statuses("chain")] == [1]
    changed = ensemble_config("chain", make_ensemble("a x=image -> y=twice"))
    with house.registry.acquire(ModelSpec("chain")):
        house.models.begin([house.config("a"), house.config("b"), changed])
        # The old version ends after its last request.
        wait_until(house, [(2, State.AVAILABLE, ""), (1, State.UNLOADING, "")])
    wait_until(house, [(2, State.AVAILABLE, ""), (1, State.END, "")])
    assert list(house.service.metadata(ModelSpec("chain")).signatures["serving_default"].outputs) == ["twice"]


def test_a_changed_ensemble_that_does_not_fit_leaves_the_old_one_in_place(house: House) -> None:
    house.save("b", 4)
    house.start(house.config("a"), house.config("b"), CHAIN)
    wait_until(house, [(1, State.AVAILABLE, "")])
    changed = ensemble_config("chain", make_ensemble("a z=image -> y=twice"))
    house.models.begin([house.config("a"), house.config("b"), changed])
    wait_until(house, [(2, State.END, "step 1 (a version 1) has no input z"), (1, State.AVAILABLE, "")])
    assert house.number("chain") == 1


def test_a_reload_returns_when_a_new_ensemble_serves(house: House) -> None:
    house.start(house.config("a"))
    house.save("b", 4)
    house.apply(house.config("a"), house.config("b"), CHAIN)
    assert house.number("chain") == 1
    house.apply(house.config("a"), house.config("b"))
    with pytest.raises(NotFound):
        house.number("chain")
    house.apply(house.config("a"), house.config("b"), CHAIN)
    assert house.number("chain") == 1


def test_a_reload_reports_an_ensemble_that_does_not_fit(house: House) -> None:
    house.start(house.config("a"))
    with pytest.raises(Unknown, match=r"chain version: 1\} due to error: FAILED_PRECONDITION: Ensemble chain: step 1"):
        house.apply(house.config("a"), ensemble_config("chain", make_ensemble("a z=image -> y=twice")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CHAIN, r"step 2 \(b\): the configuration has no model b"),
        (ensemble_config("chain", make_ensemble("a x=y -> y=y")), "its steps form a cycle"),
        (ensemble_config("a", make_ensemble("b x=x -> y=y")), "platform was tensorflow and new platform requested"),
    ],
)
def test_a_reload_that_breaks_a_rule_changes_nothing(house: House, config: ModelConfig, message: str) -> None:
    house.start(house.config("a"))
    house.wait_for("a", 1, State.AVAILABLE)
    configs = [config, house.config("b" if config.name == "a" else "a")]
    with pytest.raises(InvalidArgument, match=message):
        house.models.begin(configs)
    assert house.service.models() == ["a"]
