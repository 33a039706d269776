"""Tests for the traffic of an InferenceService through kubectl, with what KServe's controller does to its status."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kustomize import KUBECTL
from tests.support.kserve_controller import FIELD, TAG_ROUTING, InferenceServiceServer
from tests.support.kubernetes_api import READER, serving
from tpuserve_loadtests.rollout import canary_traffic
from tpuserve_loadtests.rollout.canary_traffic import KEY, Traffic
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.moves import NotMoved

LIVE, NEW = "10.0.0.1:9000", "10.0.0.2:9000"
SERVERS = {"s3://models/a": LIVE, "s3://models/b": NEW}


def predictor(uri: str, **fields: int) -> dict[str, Any]:
    return {"predictor": {"model": {"modelFormat": {"name": "tpuserve"}, "storageUri": uri}, **fields}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_traffic, "_LOOK_S", 0.0)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InferenceServiceServer]:
    """Serve an InferenceService whose new version has no traffic yet."""
    state = InferenceServiceServer(
        "serving",
        "m",
        predictor("s3://models/a"),
        "http://m-predictor.serving.example.com",
        lambda template: SERVERS[template["model"]["storageUri"]],
    )
    state.change(predictor("s3://models/b", **{FIELD: 0}))
    with serving(state):
        monkeypatch.setenv("KUBECONFIG", str(state.kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.setenv("PATH", str(KUBECTL.parent), prepend=":")
        yield state


def traffic_of(patience_s: float = 0.0) -> Traffic:
    return Traffic("serving", "m", patience_s)


def test_the_addresses_are_those_of_the_tags(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    assert (traffic.live.address, traffic.new.address) == (LIVE, NEW)
    assert (traffic.live.name, traffic.new.name) == ("m-predictor-00001", "m-predictor-00002")
    assert traffic.address == "m-predictor.serving.example.com:80"
    api.url = "https://m.example.com"
    assert traffic_of().address == "grpcs://m.example.com:443"


def test_a_share_that_is_in_force_is_not_set_again(api: InferenceServiceServer) -> None:
    assert [move.name for move in traffic_of().moves()] == ["traffic 10 %", "traffic 100 %"]
    api.change(predictor("s3://models/b", **{FIELD: 25}))
    (move,) = traffic_of().moves()
    assert (move.now, move.then, move.words) == (25, 100, "from 25 % to 100 %")


def test_all_traffic_returns_after_the_field_was_removed(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    traffic.move({KEY: 10})
    assert api.shares == {NEW: 10, LIVE: 90}
    traffic.move({KEY: 100})
    assert api.spec == predictor("s3://models/b")
    assert api.shares == {NEW: 100}
    traffic.restore({KEY: 0})
    assert api.spec == predictor("s3://models/b", **{FIELD: 0})
    assert api.shares == {NEW: 0, LIVE: 100}
    assert str(traffic.standings([KEY])[0][0]) == "traffic of the new revision: 0 % in the spec, 0 % in the status"


def test_updates_of_the_status_do_not_prevent_a_write(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    updates = iter(range(3))
    api.before_put = lambda: api.touch() if next(updates, None) is not None else None
    traffic.move({KEY: 10})
    assert api.shares == {NEW: 10, LIVE: 90}
    assert next(updates, None) is None


def test_a_spec_of_another_client_is_left_alone(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    traffic.move({KEY: 10})
    theirs = predictor("s3://models/b", minReplicas=3, **{FIELD: 10})
    api.change(theirs)
    with pytest.raises(NotMoved, match="another process changed the spec"):
        traffic.move({KEY: 100})
    assert api.spec == theirs


def test_the_return_changes_only_the_field(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    traffic.move({KEY: 10})
    api.annotations["theirs"] = "1"
    api.change({**predictor("s3://models/b", **{FIELD: 10}), "transformer": {"minReplicas": 1}})
    traffic.restore({KEY: 0})
    assert api.spec == {**predictor("s3://models/b", **{FIELD: 0}), "transformer": {"minReplicas": 1}}


def test_a_controller_that_does_not_follow_gets_the_old_share_again(api: InferenceServiceServer) -> None:
    said: list[str] = []
    traffic = Traffic("serving", "m", 2, said.append)
    api.paused = True
    with pytest.raises(
        NotMoved, match="sends 0 % to m-predictor-00002, not 10 %, and sends 100 % to m-predictor-00001"
    ):
        traffic.move({KEY: 10})
    assert api.percent == 0
    assert said == [
        "Waiting for KServe, at most 2 s: it sends 0 % to m-predictor-00002, not 10 %, and sends 100 % to "
        "m-predictor-00001, not 90 %"
    ]


def test_a_signal_ends_the_wait_for_the_controller(api: InferenceServiceServer) -> None:
    traffic = Traffic("serving", "m", 3600, interrupted=lambda: True)
    api.paused = True
    with pytest.raises(NotMoved, match="the traffic did not change"):
        traffic.move({KEY: 10})


def test_a_revision_that_gets_unready_can_still_lose_its_traffic(api: InferenceServiceServer) -> None:
    traffic = traffic_of()
    traffic.move({KEY: 10})
    api.broken = lambda template: True
    api.change(predictor("s3://models/b", minReplicas=3, **{FIELD: 10}))
    look = traffic.look({KEY: 10})
    assert not look.agrees
    assert "has the revision m-predictor-00003, which is not ready: Revision m-predictor-00003 failed" in look.lacking
    traffic.restore({KEY: 0})
    assert api.shares == {NEW: 0, LIVE: 100}


def without_tags(api: InferenceServiceServer) -> None:
    api.annotations.clear()


def without_field(api: InferenceServiceServer) -> None:
    api.change(predictor("s3://models/b"))


def with_a_broken_revision(api: InferenceServiceServer) -> None:
    api.broken = lambda template: True
    api.change(predictor("s3://models/c", **{FIELD: 0}))


def with_a_paused_controller(api: InferenceServiceServer) -> None:
    api.paused = True
    api.change(predictor("s3://models/b", **{FIELD: 50}))


def of_standard_mode(api: InferenceServiceServer) -> None:
    api.spec = {**predictor("s3://models/a"), "canary": [{"trafficPercent": 10}]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_tags, f'needs the annotation {TAG_ROUTING}: "true"'),
        (without_field, f"no {FIELD} below 100"),
        (with_a_broken_revision, "it has the revision m-predictor-00003, which is not ready"),
        (with_a_paused_controller, "the status differs from the spec: sends 0 % to m-predictor-00002, not 50 %"),
        (of_standard_mode, "the field `canary` of Standard mode"),
    ],
)
def test_an_inference_service_that_is_not_ready_for_a_rollout_is_refused(
    api: InferenceServiceServer, change: Callable[[InferenceServiceServer], None], problem: str
) -> None:
    change(api)
    with pytest.raises(BadConfig) as refused:
        traffic_of()
    assert problem in str(refused.value)


def test_a_reader_is_refused_before_anything_changes(
    api: InferenceServiceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "reader", READER)))
    with pytest.raises(BadConfig, match=r"\(Forbidden\): .* cannot update"):
        traffic_of()


def test_an_inference_service_that_does_not_exist_is_reported(api: InferenceServiceServer) -> None:
    with pytest.raises(BadConfig, match=r'\(NotFound\): inferenceservices "none" not found'):
        Traffic("serving", "none", 0.0)
