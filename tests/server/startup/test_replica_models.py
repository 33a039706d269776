"""ReplicaRule: what a client may not change, and the multiplexed model of a request."""

import pytest

from tpuserve_server.access.access import ANY_ROLE, CONTROL, OPEN, PREDICT, Identity, ModelNames, Role
from tpuserve_server.access.caller import set_caller
from tpuserve_server.core.terms.errors import PermissionDenied, Unimplemented
from tpuserve_server.protocols.guard import Attempt
from tpuserve_server.startup.replica_models import ReplicaRule


async def _never(model_id: str) -> None:
    raise AssertionError(model_id)


@pytest.mark.parametrize(
    ("protocol", "method", "path"),
    [
        ("grpc", "POST", "/tensorflow.serving.ModelService/HandleReloadConfigRequest"),
        ("grpc", "POST", "/inference.GRPCInferenceService/RepositoryModelUnload"),
        ("rest", "POST", "/v2/repository/models/half/load"),
        ("rest", "POST", "/V2/repository/models/half/unload/"),
        ("rest", "POST", "/v2/logging"),
        ("rest", "POST", "/v2/models/half/trace/setting"),
        ("rest", "POST", "/v2/systemsharedmemory/region/r/register"),
    ],
)
async def test_a_change_of_one_replica_is_refused(protocol: str, method: str, path: str) -> None:
    attempt = Attempt(protocol, method, path, {}, CONTROL)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(Unimplemented, match="would change one replica of Ray Serve alone"):
        await ReplicaRule(str, _never).check(attempt)


@pytest.mark.parametrize(
    ("protocol", "method", "path"),
    [
        ("grpc", "POST", "/tensorflow.serving.PredictionService/Predict"),
        ("rest", "POST", "/v1/models/half:predict"),
        ("rest", "POST", "/v2/models/half/versions/1/infer"),
        ("rest", "POST", "/v2/repository/index"),
        ("rest", "GET", "/v2/logging"),
        ("rest", "GET", "/metrics"),
    ],
)
async def test_other_requests_pass(protocol: str, method: str, path: str) -> None:
    attempt = Attempt(protocol, method, path, {}, PREDICT)  # type: ignore[arg-type]  # one of the two
    await ReplicaRule(str, _never).check(attempt)


async def test_the_multiplexed_model_of_the_request_is_loaded() -> None:
    loaded = []

    async def load(model_id: str) -> None:
        loaded.append(model_id)

    await ReplicaRule(lambda: "m", load).check(Attempt("rest", "POST", "/v1/models/m:predict", {}, ANY_ROLE))
    assert loaded == ["m"]


async def test_a_probe_loads_nothing() -> None:
    await ReplicaRule(lambda: "m", _never).check(Attempt("rest", "GET", "/healthz", {}, OPEN))


async def test_a_client_that_may_not_use_the_model_loads_nothing() -> None:
    loaded: list[str] = []

    async def load(model_id: str) -> None:
        loaded.append(model_id)

    rule = ReplicaRule(lambda: "m", load)
    set_caller(Identity("shop", frozenset(Role), ModelNames(["other"])))
    with pytest.raises(PermissionDenied, match="'shop' may not use the model 'm'"):
        await rule.check(Attempt("rest", "POST", "/v1/models/m:predict", {}, ANY_ROLE))
    assert loaded == []
