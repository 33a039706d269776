"""Tests for HandleReloadConfigRequest, called through the table, with a core that loads."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest, ReloadConfigResponse
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from tests.support.configured_house import CLOCK, House
from tests.support.fakes import FakeMetrics
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


class Reloads:
    """The method on a core where model `a` serves."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.metrics = FakeMetrics()
        method = rpc_table(house.service, self.metrics, CLOCK, models=house.models)[RELOAD]
        assert isinstance(method, UnaryMethod)
        self._method = method

    async def __call__(self, *models: ModelConfig, timeout_s: float = 10) -> ReloadConfigResponse:
        config = ModelServerConfig()
        config.model_config_list.config.extend(models)
        return await self.send(ReloadConfigRequest(config=config).SerializeToString(), timeout_s)

    async def send(self, body: bytes, timeout_s: float = 10) -> ReloadConfigResponse:
        context = CallContext(Deadline.after(timeout_s, CLOCK), {})
        response: ReloadConfigResponse = ReloadConfigResponse.FromString(await self._method.handle(body, context))
        return response

    def model(self, name: str, **fields: object) -> ModelConfig:
        return ModelConfig(name=name, base_path=str(self.house.root / name), model_platform="tensorflow", **fields)


@pytest.fixture
def reload(tmp_path: Path) -> Iterator[Reloads]:
    house = House(tmp_path)
    house.save("a", 1)
    house.start(house.config("a"))
    house.wait_for("a", 1, State.AVAILABLE)
    yield Reloads(house)
    house.stop()


async def test_reload_answers_when_new_models_serve_and_labels_stand(reload: Reloads) -> None:
    reload.house.save("b", 2, 3)
    policy = {"specific": {"versions": [2, 3]}}
    response = await reload(reload.model("b", model_version_policy=policy, version_labels={"old": 2, "new": 3}))
    assert (response.status.error_code, response.status.error_message) == (0, "")
    assert (reload.house.number("b", "new"), reload.house.number("b", "old")) == (3, 2)
    assert reload.house.service.models() == ["b"]
    assert [(each.method, each.code) for each in reload.metrics.finished] == [("HandleReloadConfigRequest", Code.OK)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff", "Malformed ReloadConfigRequest"),
        (
            b"",
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported",
        ),
        (
            ReloadConfigRequest(
                config={
                    "model_config_list": {"config": [{"name": "b", "base_path": "b", "model_platform": "tensorflow"}]}
                }
            ).SerializeToString(),
            "Expected model b to have an absolute path or URI; got base_path()=b",
        ),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused_and_changes_nothing(
    reload: Reloads, body: bytes, message: str
) -> None:
    with pytest.raises(ServingError) as caught:
        await reload.send(body)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)
    assert reload.house.service.models() == ["a"]


async def test_at_the_callers_deadline_it_says_what_is_still_loading(reload: Reloads) -> None:
    reload.house.loader.held.add(ServableId("b", 1))
    reload.house.save("b", 1)
    with pytest.raises(ServingError, match=r"not loaded yet: model b, \{name: b version: 1\}$") as caught:
        await reload(reload.model("a"), reload.model("b", version_labels={"stable": 1}), timeout_s=5.0)
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    reload.house.loader.gate.set()
    reload.house.wait_for("b", 1, State.AVAILABLE)
    assert reload.house.number("b", "stable") == 1


async def test_two_reloads_at_once_are_taken_one_after_the_other(reload: Reloads) -> None:
    for name in "bc":
        reload.house.save(name, 1)
    models = [reload.model(name) for name in "abc"]
    await asyncio.gather(reload(*models), reload(*models))
    assert reload.house.service.models() == ["a", "b", "c"]


async def test_a_drain_does_not_wait_for_a_reload_that_waits_for_a_load(reload: Reloads) -> None:
    reload.house.loader.held.add(ServableId("b", 1))
    reload.house.save("b", 1)
    call = asyncio.create_task(reload(reload.model("a"), reload.model("b"), timeout_s=1000))
    await asyncio.to_thread(reload.house.wait_for, "b", 1, State.LOADING)
    reload.house.service.drain()
    with pytest.raises(ServingError, match="shutting down") as caught:
        await call
    assert caught.value.code is Code.UNAVAILABLE
