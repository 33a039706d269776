"""Tests for ensembles that clients unload and load by name, on a core with real directories."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configured_house import House
from tests.support.ensembles import ensemble_config, make_ensemble
from tests.support.fake_device import DOUBLE
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.errors import DeadlineExceeded, Internal, InvalidArgument, NotFound, Unavailable
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State

CHAIN = ensemble_config("chain", make_ensemble("a x=image -> y=twice", "b x=twice -> y=fourfold"))
OUTER = ensemble_config("outer", make_ensemble("chain image=in -> fourfold=out"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, initial=("a", "b", "chain"))
    house.save("a", 1)
    house.save("b", 5)
    house.start(house.config("a", {"stable": 1}), house.config("b"), CHAIN)
    house.wait_for("chain", 1, State.AVAILABLE)
    yield house
    house.stop()


def hold(house: House, name: str = "chain") -> None:
    """Hold a model and the models of its steps, like a request."""
    house.service.acquire(ModelSpec(name)).release()


def test_an_ensemble_unloads_after_its_requests_and_leaves_its_models_alone(house: House) -> None:
    with house.service.acquire(ModelSpec("chain")):
        house.models.unload("chain")
        with pytest.raises(NotFound):
            hold(house)
        house.wait_for("chain", 1, State.UNLOADING)
    house.wait_for("chain", 1, State.END)
    assert house.service.models() == ["a", "b"]
    assert house.models.unloaded() == ["chain"]
    assert house.service.is_ready()


def test_an_ensemble_returns_with_its_version(house: House) -> None:
    changed = ensemble_config("chain", make_ensemble("a x=image -> y=twice"))
    house.models.begin([house.config("a"), house.config("b"), changed])
    house.wait_for("chain", 2, State.AVAILABLE)
    house.models.unload("chain")
    house.settle(house.models.load("chain"))
    assert house.number("chain") == 2


def test_a_load_of_a_serving_ensemble_changes_nothing(house: House) -> None:
    for _ in range(3):
        house.settle(house.models.load("chain"))
    assert [(each.servable.version, each.state) for each in house.registry.statuses("chain")] == [(1, State.AVAILABLE)]
    hold(house)


def test_a_load_of_a_model_beside_an_ensemble_does_not_poll_the_ensemble(house: House) -> None:
    house.settle(house.models.load("a"))
    assert house.registry.why_no_versions("chain") == ""
    hold(house)


def test_an_ensemble_without_one_of_its_models_fails_until_the_model_returns(house: House) -> None:
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    assert house.service.models() == ["a", "chain"]
    with pytest.raises(Unavailable, match=r"Ensemble chain: step 2 \(b\) cannot run"):
        hold(house)
    house.settle(house.models.load("b"))
    hold(house)
    assert house.number("chain") == 1


def test_a_model_named_by_label_can_be_unloaded(house: House) -> None:
    labelled = ensemble_config("other", make_ensemble("a:stable x=image -> y=twice"))
    house.apply(house.config("a", {"stable": 1}), house.config("b"), CHAIN, labelled)
    house.models.unload("a")
    house.wait_for("a", 1, State.END)
    house.ensembles.review()
    house.settle(house.models.load("other"))
    hold(house, "other")


def test_a_load_of_an_ensemble_loads_its_models(house: House) -> None:
    for name in ("chain", "a", "b"):
        house.models.unload(name)
    assert house.service.models() == []
    house.settle(house.models.load("chain"))
    hold(house)
    assert house.models.unloaded() == []


def test_a_load_of_an_ensemble_waits_for_its_models(house: House) -> None:
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    house.loader.held.add(ServableId("b", 5))
    load = house.models.load("chain")
    house.wait_for("b", 5, State.LOADING)
    assert not load.is_settled()
    assert isinstance(load.too_late(), DeadlineExceeded)
    house.loader.gate.set()
    house.settle(load)
    hold(house)


def test_only_models_that_came_with_the_ensemble_leave_with_it(house: House) -> None:
    house.models.unload("chain", with_dependents=True)
    assert house.service.models() == ["a", "b"]
    house.models.unload("b")
    house.settle(house.models.load("chain"))
    house.models.unload("chain")
    assert house.service.models() == ["a", "b"]
    house.settle(house.models.load("chain"))
    house.models.unload("chain", with_dependents=True)
    assert house.service.models() == ["a"]
    house.settle(house.models.load("chain"))
    house.settle(house.models.load("b"))
    house.models.unload("chain", with_dependents=True)
    assert house.service.models() == ["a", "b"]


def test_a_load_names_the_failed_model_and_the_next_load_tries_again(house: House) -> None:
    house.models.unload("chain")
    house.models.unload("b")
    bad = house.root / "b" / "5" / "bad"
    bad.touch()
    for _ in range(2):
        with pytest.raises(InvalidArgument) as caught:
            house.settle(house.models.load("chain"))
        assert caught.value.message == (
            "load failed for model 'chain': ensemble 'chain' depends on 'b' which has no loaded version. Model 'b' "
            "loading failed with error: version 5 is at UNAVAILABLE state: Internal: broken (tried again when "
            "its files change);"
        )
    bad.unlink()
    house.settle(house.models.load("chain"))
    hold(house)


def test_a_load_without_files_of_a_model_names_the_reason(house: House) -> None:
    house.models.unload("b")
    shutil.rmtree(house.root / "b")
    with pytest.raises(Internal) as caught:
        house.settle(house.models.load("chain"))
    assert caught.value.message == (
        "failed to load 'chain', failed to poll from model repository: model 'b' of step 2 (b): its base path does not "
        "exist"
    )


@pytest.mark.parametrize(
    ("step", "missing"), [("a:7", "version 7"), ("a:next", "version label 'next'")], ids=["number", "label"]
)
def test_a_load_names_a_version_that_the_model_does_not_serve(tmp_path: Path, step: str, missing: str) -> None:
    house = House(tmp_path, allow=True)
    house.save("a", 1)
    house.start(house.config("a", {"next": 7}), ensemble_config("chain", make_ensemble(f"{step} x=image -> y=twice")))
    with pytest.raises(InvalidArgument) as caught:
        house.settle(house.models.load("chain"))
    house.stop()
    assert caught.value.message == (
        f"load failed for model 'chain': ensemble 'chain' depends on 'a' whose required {missing} is not loaded."
    )


def test_a_load_of_an_ensemble_that_does_not_fit_fails_until_its_model_is_repaired(house: House) -> None:
    house.models.unload("chain")
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    house.loader.signatures[ServableId("b", 5)] = {DOUBLE.name: Signature(DOUBLE.name, {}, DOUBLE.outputs)}
    with pytest.raises(InvalidArgument, match="load failed for model 'chain': version 1 is at UNAVAILABLE state: "):
        house.settle(house.models.load("chain"))
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    del house.loader.signatures[ServableId("b", 5)]
    house.settle(house.models.load("b"))
    house.settle(house.models.load("chain"))
    hold(house)


def test_an_ensemble_has_no_batching_parameters_to_override(house: House) -> None:
    with pytest.raises(InvalidArgument, match="an ensemble has no batching parameters"):
        house.models.load("chain", BatchingParameters(max_batch_size=16))
    hold(house)


def test_a_load_of_an_ensemble_keeps_the_overrides_of_its_models(house: House) -> None:
    house.settle(house.models.load("b", BatchingParameters(max_batch_size=16)))
    house.settle(house.models.load("chain"))
    ((aspired, _, _),) = house.registry.snapshot("b")
    assert aspired.batching == BatchingParameters(max_batch_size=16)


def test_a_wait_ends_when_a_model_of_the_ensemble_is_unloaded_again(house: House) -> None:
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    house.loader.held.add(ServableId("b", 5))
    load = house.models.load("chain")
    house.models.unload("b")
    with pytest.raises(Unavailable, match="Model b was removed"):
        house.settle(load)


def test_an_ensemble_of_an_ensemble_loads_with_the_models_of_both(house: House) -> None:
    house.apply(house.config("a"), house.config("b"), CHAIN, OUTER)
    for name in ("outer", "chain", "b"):
        house.models.unload(name)
    house.settle(house.models.load("outer"))
    hold(house, "outer")
    house.models.unload("outer", with_dependents=True)
    assert house.service.models() == ["a"]
    (house.root / "b" / "5" / "bad").touch()
    with pytest.raises(InvalidArgument, match="'outer': ensemble 'chain' depends on 'b' which has no loaded version"):
        house.settle(house.models.load("outer"))


def test_an_outer_ensemble_waits_for_the_models_of_an_inner_one(house: House) -> None:
    house.apply(house.config("a"), house.config("b"), CHAIN, OUTER)
    house.models.unload("outer")
    house.models.unload("b")
    house.wait_for("b", 5, State.END)
    house.loader.held.add(ServableId("b", 5))
    # `chain` is AVAILABLE, and its requests fail.
    load = house.models.load("outer")
    house.wait_for("b", 5, State.LOADING)
    house.ensembles.review()
    assert not load.is_settled()
    house.loader.gate.set()
    house.settle(load)
    hold(house, "outer")


def test_quick_loads_and_unloads_end_in_the_last_state(house: House) -> None:
    for _ in range(20):
        house.models.unload("b")
        house.models.unload("chain")
        load = house.models.load("chain")
    house.settle(load)
    hold(house)
    for _ in range(20):
        load = house.models.load("chain")
        house.models.unload("chain", with_dependents=True)
    # `b` came with the ensemble, and `a` was there before.
    assert house.service.models() == ["a"]
    for name in ("chain", "b"):
        with pytest.raises(NotFound):
            hold(house, name)
    house.settle(house.models.load("chain"))
    hold(house)
