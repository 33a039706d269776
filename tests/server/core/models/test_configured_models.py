"""Tests for configurations that arrive while the server runs: rejected as a whole, or applied with their models."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configured_house import CLOCK, House
from tpuserve_server.core.models.change_record import ChangeRecord, Changes
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    Unavailable,
    Unknown,
)
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State

SPECIFIC_1_2 = VersionPolicy.specific([1, 2])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    house.save("a", 1)
    house.start(house.config("a"))
    house.wait_for("a", 1, State.AVAILABLE)
    yield house
    house.stop()


def test_a_reload_adds_one_model_removes_one_and_returns_when_the_new_one_serves(house: House) -> None:
    house.save("b", 4)
    house.apply(house.config("b"))
    assert house.number("b") == 4
    assert house.service.models() == ["b"]
    house.wait_for("a", 1, State.END)
    with pytest.raises(NotFound, match=r"Latest\(a\)"):
        house.number("a")
    house.apply(house.config("a"), house.config("b"))
    assert (house.number("a"), house.number("b")) == (1, 4)


def test_a_model_that_is_taken_away_answers_the_requests_it_has(house: House) -> None:
    with house.registry.acquire(ModelSpec("a")):
        house.apply()
        house.wait_for("a", 1, State.UNLOADING)
    house.wait_for("a", 1, State.END)
    assert house.service.why_not_ready() == "no model is configured"


def test_a_configuration_that_removes_every_model_is_refused_unless_allowed(tmp_path: Path) -> None:
    house = House(tmp_path, allow_no_models=False)
    house.save("a", 1)
    house.start(house.config("a"))
    try:
        house.wait_for("a", 1, State.AVAILABLE)
        with pytest.raises(FailedPrecondition, match="--allow_reload_without_models"):
            house.apply()
        assert house.number("a") == 1
    finally:
        house.stop()


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([ModelConfig("b", "/b"), ModelConfig("b", "/c")], "Illegal to list model b multiple times in config list"),
        ([ModelConfig("b", "b/c")], "Expected model b to have an absolute path or URI; got base_path()=b/c"),
        ([ModelConfig("b", "s3://me:pw@b/c")], "Model b: base_path must have no password; got s3://***@b/c"),
        ([ModelConfig("b", "")], "Expected model b to have an absolute path or URI; got base_path()="),
        (
            [ModelConfig("a", "/a", platform="torch")],
            "Illegal to change a model's platform. For model a platform was tensorflow and new platform requested is "
            "torch",
        ),
        ([ModelConfig("b", "gs://b", platform="torch")], "Model b requests unsupported platform torch"),
    ],
)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(
    house: House, configs: list[ModelConfig], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        house.models.begin(configs)
    assert caught.value.message == message
    assert house.service.models() == ["a"]
    assert house.number("a") == 1


def test_labels_follow_their_version_numbers(house: House) -> None:
    house.save("a", 2)
    house.apply(house.config("a", {"stable": 1, "canary": 2}, SPECIFIC_1_2))
    assert (house.number("a", "stable"), house.number("a", "canary")) == (1, 2)
    house.apply(house.config("a", {"stable": 2}, SPECIFIC_1_2))
    assert house.number("a", "stable") == 2
    with pytest.raises(InvalidArgument, match="Unrecognized servable version label: canary"):
        house.number("a", "canary")
    house.apply(house.config("a", {"stable": 2}, VersionPolicy.specific([2])))
    house.wait_for("a", 1, State.END)
    shutil.rmtree(house.root / "a" / "2")
    house.wait_for("a", 2, State.END)
    with pytest.raises(NotFound, match=r"Specific\(a, 2\)"):
        house.number("a", "stable")
    assert house.registry.labels("a") == {"stable": 2}


def test_a_label_moves_in_the_moment_in_which_its_version_serves(house: House) -> None:
    house.apply(house.config("a", {"stable": 1}, SPECIFIC_1_2))
    house.loader.held.add(ServableId("a", 2))
    house.save("a", 2)
    transition = house.models.begin([house.config("a", {"stable": 2}, VersionPolicy.specific([2]))])
    house.wait_for("a", 2, State.LOADING)
    assert not transition.is_settled()
    assert house.number("a", "stable") == 1
    house.loader.gate.set()
    transition.wait(Deadline.after(10, CLOCK))
    assert house.number("a", "stable") == 2


def test_labels_of_a_new_model_stand_when_the_reload_returns(house: House) -> None:
    house.save("b", 3, 5)
    house.apply(house.config("a"), house.config("b", {"old": 3, "new": 5}, VersionPolicy.all()))
    assert (house.number("b", "old"), house.number("b", "new")) == (3, 5)


@pytest.mark.parametrize("labels", [{"stable": 9}, {"stable": 1, "canary": 2}])
def test_a_label_for_a_version_that_is_not_coming_is_refused(house: House, labels: dict[str, int]) -> None:
    house.apply(house.config("a", {"stable": 1}))
    version = max(labels.values())
    house.save("b", 1)
    with pytest.raises(FailedPrecondition) as caught:
        house.models.begin([house.config("b"), house.config("a", labels)])
    assert caught.value.message == (
        f"Request to assign label to version {version} of model a, which is not currently available for inference"
    )
    assert house.service.models() == ["a"]
    assert house.registry.labels("a") == {"stable": 1}


def test_with_the_flag_a_label_that_stands_for_nothing_may_go_anywhere(tmp_path: Path) -> None:
    house = House(tmp_path, allow=True)
    house.save("a", 1)
    house.start(house.config("a", {"early": 7}))
    house.wait_for("a", 1, State.AVAILABLE)
    house.apply(house.config("a", {"early": 7, "stable": 9}))
    with pytest.raises(NotFound, match=r"Specific\(a, 9\)"):
        house.number("a", "stable")
    with pytest.raises(FailedPrecondition, match="version 8 of model a"):
        house.apply(house.config("a", {"stable": 8}))
    house.stop()


def test_labels_of_the_first_configuration_wait_for_their_versions(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.start(house.config("a", {"stable": 3}))
    with pytest.raises(Unavailable, match="Label stable of model a has no version ready yet"):
        house.number("a", "stable")
    with pytest.raises(InvalidArgument, match="Unrecognized servable version label: canary"):
        house.number("a", "canary")
    house.save("a", 3)
    house.wait_for("a", 3, State.AVAILABLE)
    assert house.number("a", "stable") == 3
    house.stop()


def test_the_first_configuration_must_obey_the_rules_too(tmp_path: Path) -> None:
    house = House(tmp_path)
    with pytest.raises(InvalidArgument, match="unsupported platform x"):
        house.models.start([ModelConfig("a", "/a", platform="x")])
    house.manager.stop()


def test_a_new_model_that_cannot_be_loaded_is_told_in_upstreams_words(house: House) -> None:
    (house.save("b", 2) / "2" / "bad").touch()
    with pytest.raises(Unknown) as caught:
        house.apply(house.config("a"), house.config("b"))
    assert caught.value.message == (
        "1 model(s) did not become available: {{{name: b version: 2} due to error: INTERNAL: broken}, }"
    )
    assert house.service.models() == ["a", "b"]
    assert house.number("a") == 1
    # The version failed for good, and the initial versions still serve.
    assert house.service.is_ready()


def test_a_labelled_version_that_cannot_be_loaded_is_told_and_the_label_stays(house: House) -> None:
    house.apply(house.config("a", {"stable": 1}, SPECIFIC_1_2))
    # Rename it atomically: the source polls every 10 ms and must not find the version without `bad`.
    (house.save("aside", 2) / "2" / "bad").touch()
    (house.root / "aside" / "2").rename(house.root / "a" / "2")
    with pytest.raises(Unknown, match=r"\{name: a version: 2\} due to error: INTERNAL: broken"):
        house.apply(house.config("a", {"stable": 2}, SPECIFIC_1_2))
    assert house.number("a", "stable") == 1


def test_a_labelled_version_that_fails_while_it_is_asked_about_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.loader.held.add(ServableId("a", 2))
    (house.save("a", 2) / "2" / "bad").touch()
    transition = house.models.begin([house.config("a", {"stable": 2}, SPECIFIC_1_2)])
    ask = house.registry.is_awaited_by_label

    def ask_and_let_it_fail(servable_id: ServableId) -> bool:
        awaited = ask(servable_id)
        house.loader.gate.set()
        house.wait_for("a", 2, State.END)
        return awaited

    monkeypatch.setattr(house.registry, "is_awaited_by_label", ask_and_let_it_fail)
    with pytest.raises(Unknown, match=r"\{name: a version: 2\} due to error: INTERNAL: broken"):
        transition.is_settled()


def test_who_does_not_wait_to_the_end_is_told_what_is_still_loading(house: House) -> None:
    house.loader.held.add(ServableId("b", 1))
    house.save("b", 1)
    with pytest.raises(DeadlineExceeded, match=r"in effect, but these are not loaded yet: model b$"):
        house.apply(house.config("a"), house.config("b"), timeout_s=0)
    assert house.service.is_ready()
    house.loader.gate.set()
    house.wait_for("b", 1, State.AVAILABLE)


def test_a_reload_ends_when_a_later_one_takes_its_model_away(house: House) -> None:
    transition = house.models.begin([house.config("a"), house.config("b")])
    assert not transition.is_settled()
    house.apply(house.config("a"))
    with pytest.raises(Unavailable, match="removed by a later configuration"):
        transition.wait(Deadline.never())


def test_a_reload_that_waits_for_a_label_ends_when_a_later_one_takes_its_model_away(house: House) -> None:
    house.loader.held.add(ServableId("a", 2))
    house.save("a", 2)
    transition = house.models.begin([house.config("a", {"stable": 2})])
    assert not transition.is_settled()
    house.apply()
    with pytest.raises(Unavailable, match="removed by a later configuration"):
        transition.wait(Deadline.never())


def test_a_reload_waits_for_no_label_that_a_later_one_has_moved(house: House) -> None:
    house.loader.held.add(ServableId("a", 2))
    house.save("a", 2)
    transition = house.models.begin([house.config("a", {"stable": 2})])
    house.apply(house.config("a", {"stable": 1}))
    transition.wait(Deadline.never())
    assert house.number("a", "stable") == 1


def test_a_deadline_beyond_what_threads_can_wait_for_is_no_error(house: House) -> None:
    house.save("b", 1)
    house.apply(house.config("a"), house.config("b"), timeout_s=1e18)
    assert house.number("b") == 1


def test_a_reload_ends_when_the_server_does(house: House) -> None:
    transition = house.models.begin([house.config("a"), house.config("b")])
    ended: list[ServingError] = []

    def wait() -> None:
        try:
            transition.wait(Deadline.never())
        except ServingError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    house.stop()
    waiting.join(10)
    assert [error.message for error in ended] == ["The server is shutting down"]


def test_the_server_is_ready_when_each_model_serves_or_has_failed(tmp_path: Path) -> None:
    house = House(tmp_path, initial=("a", "b"))
    (house.save("a", 1) / "1" / "bad").touch()
    house.start(house.config("a"), house.config("b"))
    house.wait_for("a", 1, State.END)
    assert house.service.why_not_ready().startswith("no version available for: b")
    assert house.service.start_failures() == []
    house.save("b", 1)
    house.wait_for("b", 1, State.AVAILABLE)
    assert house.service.is_ready()
    house.stop()


def test_a_start_at_which_nothing_could_be_loaded_has_failed(tmp_path: Path) -> None:
    house = House(tmp_path, initial=("a", "b"))
    for name in "ab":
        (house.save(name, 1) / "1" / "bad").touch()
    house.start(house.config("a"), house.config("b"))
    for name in "ab":
        house.wait_for(name, 1, State.END)
    failures = house.service.start_failures()
    assert [(str(servable_id), error.message) for servable_id, error in failures] == [
        ("{name: a version: 1}", "broken"),
        ("{name: b version: 1}", "broken"),
    ]
    house.stop()


def test_a_failure_after_something_was_served_is_no_failed_start(house: House) -> None:
    (house.save("b", 1) / "1" / "bad").touch()
    with pytest.raises(Unknown):
        house.apply(house.config("b"))
    house.wait_for("a", 1, State.END)
    assert house.service.start_failures() == []
    assert house.service.why_not_ready().startswith("no version available for: b")


def test_observers_hear_each_configuration_in_force(house: House) -> None:
    heard: list[list[str]] = []
    house.models.observe(lambda configs: heard.append([config.name for config in configs]))
    house.save("b", 1)
    house.apply(house.config("b"))
    with pytest.raises(InvalidArgument):
        house.apply(ModelConfig("c", "relative"))
    assert heard == [["a"], ["b"]]


def test_the_statuses_of_models_that_went_do_not_pile_up(house: House) -> None:
    for number in range(40):
        house.save(f"m{number:02}", 1)
        house.apply(house.config(f"m{number:02}"))
        if number:
            house.wait_for(f"m{number - 1:02}", 1, State.END)
    house.apply(house.config("m39"))
    assert house.registry.statuses("m00") == []
    assert house.registry.statuses("m38")[0].state is State.END


def test_a_base_path_that_cannot_be_read_brings_no_labelled_version(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(FailedPrecondition, match="version 2 of model a"):
        house.models.begin([house.config("a", {"stable": 2})])


def test_a_client_may_configure_models_beside_those_of_the_operator_alone(house: House, tmp_path: Path) -> None:
    house.save("b", 4)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "1").mkdir(parents=True)
    with pytest.raises(PermissionDenied, match="--reload_roots"):
        house.models.reload([house.config("a"), ModelConfig("c", str(outside))], b"")
    assert house.service.models() == ["a"]
    house.models.reload([house.config("a"), house.config("b")], b"")
    house.wait_for("b", 4, State.AVAILABLE)
    # The operator's own file may name any path, and the client may repeat it.
    house.models.begin([house.config("a"), ModelConfig("c", str(outside))])
    house.models.reload([ModelConfig("c", str(outside))], b"")
    assert house.service.models() == ["c"]


def test_a_refused_reload_reads_no_base_path(house: House, tmp_path: Path) -> None:
    labelled = ModelConfig("c", "/etc", version_labels={"stable": 1})
    with pytest.raises(PermissionDenied):
        house.models.reload([labelled], b"")


def test_unloading_the_last_model_is_allowed_and_makes_the_server_unready(house: House) -> None:
    house.models.unload("a")
    house.wait_for("a", 1, State.END)
    assert house.service.why_not_ready() == "no model is configured"
    house.settle(house.models.load("a"))
    assert house.number("a") == 1
    assert house.service.why_not_ready() == ""


def test_the_next_process_starts_with_the_changes_of_clients(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    house = House(tmp_path, record=ChangeRecord(tmp_path / "record"))
    for name in "abc":
        house.save(name, 1)
    house.start(house.config("a"))
    house.models.reload([house.config("a"), house.config("b", {"stable": 1}), house.config("c")], b"the reload")
    house.models.unload("c")
    house.stop()

    record = ChangeRecord(tmp_path / "record")
    assert record.read("") == Changes(b"the reload", ("c",))
    following = House(tmp_path, initial=("a", "b"), record=record)
    reloaded = [following.config("a"), following.config("b", {"stable": 1}), following.config("c")]
    following.models.start([following.config("a")], record.read(""), reloaded)
    following.source.start()
    following.wait_for("b", 1, State.AVAILABLE)
    assert (following.service.models(), following.models.unloaded()) == (["a", "b"], ["c"])
    assert following.number("b", "stable") == 1
    # The changes survive a further process, and the operator's next configuration replaces them.
    following.models.unload("b")
    assert record.read("") == Changes(b"the reload", ("b", "c"))
    following.settle(following.models.load("b"))
    assert record.read("") == Changes(b"the reload", ("c",))
    following.models.begin([following.config("a")])
    assert record.read("") == Changes()
    following.stop()


@pytest.mark.parametrize("name", ["a\nb", "x" * 300])
def test_a_load_of_a_name_with_control_characters_is_refused(house: House, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        house.models.load(name)
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()
