import threading

import pytest

from tests.support.fake_device import NO_BATCHER, RecordingMetrics
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.errors import Internal, InvalidArgument, NotFound, Unavailable
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, Pending, ServableId, State


def aspired(version: int, fingerprint: str = "") -> AspiredVersion:
    return AspiredVersion(ServableId("m", version), VersionLocation(f"/models/m/{version}"), fingerprint)


def loaded() -> LoadedVersion:
    # The registry only passes it on and reads its notes.
    return LoadedVersion(None, NO_BATCHER, notes=("device: fake",))  # type: ignore[arg-type]  # opaque to the registry


@pytest.fixture
def registry() -> ModelRegistry:
    return ModelRegistry(["m"], RecordingMetrics())


def bring_up(registry: ModelRegistry, *versions: int) -> None:
    registry.aspire("m", {version: aspired(version) for version in versions})
    for version in versions:
        registry.loading(ServableId("m", version))
        registry.available(ServableId("m", version), loaded())


def test_no_version_asked_for_means_the_latest_available(registry: ModelRegistry) -> None:
    bring_up(registry, 1, 3)
    with registry.acquire(ModelSpec("m")) as handle:
        assert handle.servable_id == ServableId("m", 3)
    with registry.acquire(ModelSpec("m", version=1)) as handle:
        assert handle.servable_id == ServableId("m", 1)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (ModelSpec("other"), NotFound, r"Servable not found for request: Latest\(other\)"),
        (ModelSpec("m", version=9), NotFound, r"Servable not found for request: Specific\(m, 9\)"),
        (ModelSpec("m", version_label="x"), InvalidArgument, "Unrecognized servable version label: x"),
    ],
)
def test_what_cannot_be_found_is_said_as_tensorflow_serving_says_it(
    registry: ModelRegistry, spec: ModelSpec, error: type[Exception], message: str
) -> None:
    bring_up(registry, 1)
    with pytest.raises(error, match=message):
        registry.acquire(spec)


def test_a_model_on_its_way_is_unavailable_not_unknown(registry: ModelRegistry) -> None:
    with pytest.raises(Unavailable, match="no version directory found"):
        registry.acquire(ModelSpec("m"))
    registry.aspire("m", {2: aspired(2)})
    registry.loading(ServableId("m", 2))
    with pytest.raises(Unavailable, match="version 2 is LOADING"):
        registry.acquire(ModelSpec("m"))
    registry.failed(ServableId("m", 2), Internal("broken"))
    with pytest.raises(NotFound):
        registry.acquire(ModelSpec("m"))
    registry.aspire("m", {3: aspired(3)})
    with pytest.raises(Unavailable, match="version 3 is START"):
        registry.acquire(ModelSpec("m"))


def test_versions_and_labels_of_the_start_are_unavailable_until_they_serve_or_fail(registry: ModelRegistry) -> None:
    registry.assign_labels("m", {"stable": 1, "canary": 2})
    with pytest.raises(Unavailable, match="Model m version 1 is not ready yet: no version directory found"):
        registry.acquire(ModelSpec("m", version=1))
    registry.aspire("m", {1: aspired(1), 2: aspired(2)})
    registry.loading(ServableId("m", 1))
    registry.available(ServableId("m", 1), loaded())
    registry.loading(ServableId("m", 2))
    coming = "version 1 is AVAILABLE, version 2 is LOADING"
    with pytest.raises(Unavailable, match=f"Model m version 2 is not ready yet: {coming}"):
        registry.acquire(ModelSpec("m", version=2))
    with pytest.raises(Unavailable, match=f"Label canary of model m has no version ready yet: {coming}"):
        registry.acquire(ModelSpec("m", version_label="canary"))
    with pytest.raises(NotFound):
        registry.acquire(ModelSpec("m", version=9))
    with registry.acquire(ModelSpec("m", version_label="stable")) as handle:
        assert handle.servable_id == ServableId("m", 1)
    registry.failed(ServableId("m", 2), Internal("broken"))
    with pytest.raises(NotFound):
        registry.acquire(ModelSpec("m", version=2))
    with pytest.raises(InvalidArgument):
        registry.acquire(ModelSpec("m", version_label="canary"))


def test_a_version_after_the_start_is_unknown_until_it_serves(registry: ModelRegistry) -> None:
    """Refuse it as TensorFlow Serving does."""
    bring_up(registry, 1)
    registry.aspire("m", {1: aspired(1), 2: aspired(2)})
    registry.loading(ServableId("m", 2))
    with pytest.raises(NotFound, match=r"Specific\(m, 2\)"):
        registry.acquire(ModelSpec("m", version=2))


def test_a_failure_shows_in_status_newest_first(registry: ModelRegistry) -> None:
    bring_up(registry, 1)
    registry.aspire("m", {2: aspired(2)})
    registry.loading(ServableId("m", 2))
    registry.failed(ServableId("m", 2), Internal("broken"))
    assert [(s.servable.version, s.state, s.error) for s in registry.statuses("m")] == [
        (2, State.END, "broken (tried again when its files change)"),
        (1, State.AVAILABLE, ""),
    ]
    assert registry.statuses("m")[1].notes == ("device: fake",)
    assert registry.statuses("other") == []


def test_states_never_move_back(registry: ModelRegistry) -> None:
    bring_up(registry, 1)
    with pytest.raises(AssertionError, match="AVAILABLE to LOADING is not forward"):
        registry.loading(ServableId("m", 1))


def test_unloading_waits_for_the_last_handle_and_gives_no_new_ones(registry: ModelRegistry) -> None:
    bring_up(registry, 1)
    first = registry.acquire(ModelSpec("m"))
    second = registry.acquire(ModelSpec("m"))
    done = threading.Event()

    def unload() -> None:
        registry.wait_idle(registry.unloading(ServableId("m", 1)))
        done.set()

    thread = threading.Thread(target=unload)
    unloading = threading.Event()
    registry.subscribe(unloading.set)
    thread.start()
    assert unloading.wait(10)
    with pytest.raises(Unavailable, match="version 1 is UNLOADING"):
        registry.acquire(ModelSpec("m"))
    assert registry.statuses("m")[0].waits == "unloads after its last 2 requests"
    with first:
        pass
    assert not done.is_set()
    with second:
        pass
    thread.join(10)
    assert done.is_set()
    assert registry.statuses("m")[0].waits == "unloads after the model's last run; a run that hangs keeps it in memory"
    registry.aspire("m", {})
    registry.ended(ServableId("m", 1))
    assert registry.statuses("m")[0].state is State.END


def test_a_failed_version_is_tried_again_only_when_its_contents_change(registry: ModelRegistry) -> None:
    registry.aspire("m", {1: aspired(1, "a")})
    registry.loading(ServableId("m", 1))
    registry.failed(ServableId("m", 1), Internal("broken"))
    registry.aspire("m", {1: aspired(1, "a")})
    assert registry.statuses("m")[0].state is State.END
    registry.aspire("m", {1: aspired(1, "b")})
    assert registry.statuses("m")[0].state is State.START


def test_a_version_that_never_started_is_forgotten_when_no_longer_wanted(registry: ModelRegistry) -> None:
    registry.aspire("m", {1: aspired(1)})
    registry.aspire("m", {2: aspired(2)})
    assert [status.servable.version for status in registry.statuses("m")] == [2]


def test_status_does_not_grow_for_ever(registry: ModelRegistry) -> None:
    for version in range(1, 101):
        bring_up(registry, version)
        registry.aspire("m", {})
        registry.unloading(ServableId("m", version))
        registry.ended(ServableId("m", version))
    registry.aspire("m", {})
    versions = [status.servable.version for status in registry.statuses("m")]
    assert versions == list(range(100, 68, -1))


def test_listeners_hear_every_change_until_they_leave(registry: ModelRegistry) -> None:
    heard: list[str] = []
    unsubscribe = registry.subscribe(lambda: heard.append("change"))
    bring_up(registry, 1)
    assert heard == ["change", "change"]
    unsubscribe()
    registry.unloading(ServableId("m", 1))
    assert len(heard) == 2


def test_a_listener_that_fails_stops_neither_the_version_nor_the_others(registry: ModelRegistry) -> None:
    heard: list[str] = []

    def fail() -> None:
        raise BrokenPipeError

    registry.subscribe(fail)
    registry.subscribe(lambda: heard.append("change"))
    bring_up(registry, 1)
    assert heard == ["change", "change"]
    assert registry.why_not_ready() == ""


def test_a_version_forgotten_before_its_load_began_is_not_loaded(registry: ModelRegistry) -> None:
    registry.aspire("m", {1: aspired(1)})
    registry.aspire("m", {})
    assert not registry.loading(ServableId("m", 1))


def test_models_without_a_version_are_missing(registry: ModelRegistry) -> None:
    assert registry.why_not_ready() == "no version available for: m"
    bring_up(registry, 1)
    assert registry.why_not_ready() == ""
    assert registry.model_names() == ("m",)


def test_a_model_that_loads_says_so_and_for_how_long() -> None:
    now_s = 100.0
    registry = ModelRegistry(["m", "other"], RecordingMetrics(), lambda: now_s)
    registry.aspire("m", {3: aspired(3)})
    assert registry.why_not_ready() == "loading: m (version 3); no version available for: other"
    registry.loading(ServableId("m", 3))
    now_s = 112.4
    assert registry.why_not_ready() == "loading: m (version 3, 12 s); no version available for: other"
    registry.waiting(ServableId("m", 3), "load attempt 1 of 6 failed")
    assert registry.why_not_ready() == "no version available for: m, other"


def test_versions_that_are_not_whole_are_listed_with_what_they_lack(registry: ModelRegistry) -> None:
    bring_up(registry, 1)
    registry.expect("m", Pending(versions={2: "saved_model.pb is missing", 1: "of no interest: it serves"}))
    newest, oldest = registry.statuses("m")
    assert (newest.servable.version, newest.state, newest.error_code) == (2, State.START, 0)
    assert newest.waits == "not complete yet: saved_model.pb is missing"
    assert newest.notes == (newest.waits,)
    assert (oldest.servable.version, oldest.state, oldest.waits) == (1, State.AVAILABLE, "")
    registry.expect("m", Pending())
    assert len(registry.statuses("m")) == 1


def test_a_model_that_waits_says_for_what(registry: ModelRegistry) -> None:
    registry.expect("m", Pending("its base path does not exist"))
    assert registry.why_not_ready() == "no version available for: m (its base path does not exist)"
    assert registry.why_no_versions("m") == "its base path does not exist"
    with pytest.raises(Unavailable, match="no version ready yet: its base path does not exist"):
        registry.acquire(ModelSpec("m"))
    registry.expect("m", Pending(versions={3: "its directory is empty"}))
    with pytest.raises(Unavailable, match="version 3 is not complete yet: its directory is empty"):
        registry.acquire(ModelSpec("m"))
    assert (
        registry.why_not_ready()
        == "no version available for: m (version 3 is not complete yet: its directory is empty)"
    )


def test_a_sentence_names_the_newest_of_many_versions_that_are_not_whole() -> None:
    pending = Pending(versions=dict.fromkeys(range(1, 101), "its directory is empty"))
    newest = [f"version {number} is not complete yet: its directory is empty" for number in (100, 99, 98)]
    assert pending.describe() == "; ".join([*newest, "97 more"])


def test_listeners_hear_what_a_model_waits_for_once(registry: ModelRegistry) -> None:
    heard: list[str] = []
    registry.subscribe(lambda: heard.append(registry.why_not_ready()))
    for _ in range(2):
        registry.expect("m", Pending("its base path does not exist"))
    assert heard == ["no version available for: m (its base path does not exist)"]


def test_nothing_is_expected_of_a_model_that_is_not_configured(registry: ModelRegistry) -> None:
    registry.configure([])
    registry.expect("m", Pending(versions={3: "its directory is empty"}))
    registry.expect("unknown", Pending("its base path does not exist"))
    assert registry.statuses("m") == []
    assert registry.why_no_versions("unknown") == ""


def test_server_is_ready_once_every_version_of_the_start_has_loaded_or_failed(registry: ModelRegistry) -> None:
    registry.aspire("m", {version: aspired(version) for version in (1, 2, 3)})
    for version in (1, 2):
        registry.loading(ServableId("m", version))
    registry.available(ServableId("m", 2), loaded())
    assert registry.why_not_ready() == "the start has not ended for: m (version 1 is loading; version 3 is loading)"
    registry.failed(ServableId("m", 1), Internal("broken"))
    registry.loading(ServableId("m", 3))
    registry.available(ServableId("m", 3), loaded())
    assert registry.why_not_ready() == ""
    registry.aspire("m", {version: aspired(version) for version in (2, 3, 4)})
    registry.loading(ServableId("m", 4))
    assert registry.why_not_ready() == ""


def test_version_that_waits_for_its_next_attempt_does_not_delay_the_others(registry: ModelRegistry) -> None:
    registry.aspire("m", {version: aspired(version) for version in (1, 2)})
    for version in (1, 2):
        registry.loading(ServableId("m", version))
    registry.available(ServableId("m", 1), loaded())
    registry.waiting(ServableId("m", 2), "load attempt 1 of 6 failed")
    assert registry.why_not_ready() == ""
    registry.waiting(ServableId("m", 2), "")
    assert registry.why_not_ready() == ""


def test_server_is_ready_once_the_next_poll_has_looked_at_new_versions(registry: ModelRegistry) -> None:
    registry.expect("m", Pending(versions={2: "its files have changed"}, new=frozenset({2})))
    bring_up(registry, 1)
    assert "version 2 is not complete yet" in registry.why_not_ready()
    registry.expect("m", Pending(versions={2: "its files have changed"}))
    assert registry.why_not_ready() == ""


def test_server_is_ready_once_labels_have_taken_effect(registry: ModelRegistry) -> None:
    registry.assign_labels("m", {"stable": 1, "canary": 2, "old": 9})
    registry.expect("m", Pending(versions={2: "its files have changed"}))
    bring_up(registry, 1)
    assert "version 2 is not complete yet" in registry.why_not_ready()
    registry.aspire("m", {1: aspired(1), 2: aspired(2)})
    registry.expect("m", Pending())
    registry.loading(ServableId("m", 2))
    assert "version 2 is loading" in registry.why_not_ready()
    registry.available(ServableId("m", 2), loaded())
    assert registry.why_not_ready() == ""
    assert registry.labels("m") == {"stable": 1, "canary": 2}


def test_server_without_models_is_not_ready() -> None:
    assert ModelRegistry([], RecordingMetrics()).why_not_ready() == "no model is configured"
