"""Tests for models that clients unload and load by name, on a core with real directories."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configured_house import House
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.models.model_config import VersionPolicy
from tpuserve_server.core.terms.errors import DeadlineExceeded, Internal, InvalidArgument, NotFound, Unavailable
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, initial=("a", "b"))
    house.save("a", 1)
    house.save("b", 5)
    house.start(house.config("a", {"stable": 1}), house.config("b"))
    house.wait_for("a", 1, State.AVAILABLE)
    house.wait_for("b", 5, State.AVAILABLE)
    yield house
    house.stop()


def test_an_unloaded_model_answers_no_request_and_leaves_the_others_alone(house: House) -> None:
    with house.registry.acquire(ModelSpec("a")):
        house.models.unload("a")
        with pytest.raises(NotFound):
            house.number("a")
        house.wait_for("a", 1, State.UNLOADING)
    house.wait_for("a", 1, State.END)
    assert house.number("b") == 5
    assert house.service.models() == ["b"]
    assert house.models.unloaded() == ["a"]
    assert house.service.is_ready()


def test_a_load_puts_an_unloaded_model_back_with_its_labels(house: House) -> None:
    house.models.unload("a")
    house.settle(house.models.load("a"))
    assert house.number("a", "stable") == 1
    assert house.models.unloaded() == []
    assert house.service.models() == ["a", "b"]


def test_a_load_during_the_unload_waits_for_it(house: House) -> None:
    with house.registry.acquire(ModelSpec("a")):
        house.models.unload("a")
        house.wait_for("a", 1, State.UNLOADING)
        load = house.models.load("a")
        assert not load.is_settled()
    house.settle(load)
    assert house.number("a") == 1


def test_a_load_of_a_serving_model_waits_for_its_new_version(house: House) -> None:
    house.loader.held.add(ServableId("a", 2))
    house.save("a", 2)
    load = house.models.load("a")
    house.wait_for("a", 2, State.LOADING)
    assert not load.is_settled()
    assert isinstance(load.too_late(), DeadlineExceeded)
    assert load.too_late().message == (
        "failed to load 'a' before the deadline: version 1 is AVAILABLE, version 2 is LOADING. The server continues to "
        "load it"
    )
    house.loader.gate.set()
    house.settle(load)
    assert house.number("a") == 2


def test_a_load_without_a_change_returns_and_changes_nothing(house: House) -> None:
    house.settle(house.models.load("a"))
    assert house.number("a") == 1


def test_a_failed_load_names_the_version_and_the_next_load_tries_again(house: House) -> None:
    house.models.unload("a")
    bad = house.root / "a" / "1" / "bad"
    bad.touch()
    with pytest.raises(InvalidArgument) as caught:
        house.settle(house.models.load("a"))
    assert caught.value.message == (
        "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: broken "
        "(tried again when its files change);"
    )
    with pytest.raises(InvalidArgument, match="broken"):
        house.settle(house.models.load("a"))
    bad.unlink()
    house.settle(house.models.load("a"))
    assert house.number("a") == 1


def test_the_old_version_serves_when_the_new_one_fails(house: House) -> None:
    house.save_bad("a", 2)
    with pytest.raises(InvalidArgument, match="version 2 is at UNAVAILABLE state"):
        house.settle(house.models.load("a"))
    assert house.number("a") == 1


def test_a_load_without_a_version_names_the_reason(house: House) -> None:
    house.models.unload("a")
    shutil.rmtree(house.root / "a")
    with pytest.raises(Internal) as caught:
        house.settle(house.models.load("a"))
    assert caught.value.message == (
        "failed to load 'a', failed to poll from model repository: its base path does not exist"
    )
    house.models.unload("a")
    (house.root / "a").mkdir()
    with pytest.raises(Internal, match="contains no version directory"):
        house.settle(house.models.load("a"))


def test_a_load_without_a_version_of_the_policy_fails(house: House) -> None:
    house.apply(house.config("a"), house.config("b", policy=VersionPolicy.specific([9])))
    with pytest.raises(Internal, match="contains no version that its policy chooses"):
        house.settle(house.models.load("b"))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("c", Internal, "failed to load 'c', failed to poll from model repository: the server's configuration"),
        ("", InvalidArgument, "Model name cannot be empty"),
        ("../a", InvalidArgument, "invalid model name '../a', model name must not contain path traversal characters"),
    ],
)
def test_a_load_of_an_unknown_model_fails(house: House, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        house.models.load(name)
    house.models.unload(name)


def test_a_new_configuration_loads_unloaded_models_that_it_names(house: House) -> None:
    house.models.unload("a")
    house.models.unload("b")
    house.apply(house.config("a"))
    assert house.number("a") == 1
    assert house.models.unloaded() == []
    with pytest.raises(Internal):
        house.models.load("b")


def test_a_wait_ends_when_the_model_is_unloaded_again(house: House) -> None:
    house.loader.held.add(ServableId("a", 1))
    house.models.unload("a")
    load = house.models.load("a")
    house.models.unload("a")
    with pytest.raises(Unavailable):
        load.is_settled()


def test_batching_parameters_apply_until_the_next_load(house: House) -> None:
    def served() -> BatchingParameters | None:
        ((aspired, state, _),) = house.registry.snapshot("a")
        assert state is State.AVAILABLE
        return aspired.batching

    house.settle(house.models.load("a", BatchingParameters(max_batch_size=16)))
    assert served() == BatchingParameters(max_batch_size=16)
    house.settle(house.models.load("a"))
    assert served() is None
