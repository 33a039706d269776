"""Tests for finding the model, version and signature of a request."""

import pytest

from tests.support.fakes import FakeService, half_plus_two_signature
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, VersionStatus
from tpuserve_server.protocols.oip.models import acquire_model, available_versions, describe_model, why_model_not_ready

HALF = half_plus_two_signature()


def named(*names: str) -> FakeService:
    return FakeService(signatures={name: Signature(name, HALF.inputs, HALF.outputs) for name in names})


def status(version: int, state: State) -> VersionStatus:
    return VersionStatus(ServableId("m", version), state)


def refusal(service: FakeService, spec: ModelSpec) -> ServingError:
    with pytest.raises(ServingError) as caught:
        acquire_model(service, spec)
    return caught.value


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [(("a", "serving_default"), "", "serving_default"), (("a", "serving_default"), "a", "a"), (("a",), "", "a")],
)
def test_the_default_signature_is_serving_default_or_the_only_one(
    names: tuple[str, ...], wanted: str, found: str
) -> None:
    service = named(*names)
    with acquire_model(service, ModelSpec("m", signature_name=wanted)) as model:
        assert model.signature.name == found
    if not wanted:
        assert describe_model(service, ModelSpec("m")).signature.name == found


def test_an_unknown_or_ambiguous_signature_is_refused_with_the_known_ones() -> None:
    service = named("a", "b")
    error = refusal(service, ModelSpec("m", signature_name="c"))
    assert error.message == "model 'm' has no signature 'c', expected one of ['a', 'b']"
    error = refusal(service, ModelSpec("m"))
    assert isinstance(error, InvalidArgument)
    assert error.message.endswith("the request parameter 'signature_name' must name one of ['a', 'b']")
    with pytest.raises(InvalidArgument, match="must name one of"):
        describe_model(service, ModelSpec("m"))


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        (ModelSpec("n"), NotFound, "Request for unknown model: 'n' is not found"),
        (ModelSpec("m", 9), NotFound, "Request for unknown model: 'm' version 9 is not found"),
        (ModelSpec("m", 8), Unavailable, "Request for unknown model: 'm' version 8 is not at ready state"),
    ],
)
def test_unknown_models_and_versions_have_triton_s_errors(
    spec: ModelSpec, kind: type[ServingError], message: str
) -> None:
    service = FakeService()
    service.statuses = [status(7, State.AVAILABLE), status(8, State.LOADING)]
    error = refusal(service, spec)
    assert (type(error), error.message) == (kind, message)
    assert why_model_not_ready(service, spec) == message


def test_a_model_without_versions_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()

    def acquire(spec: ModelSpec) -> None:
        raise NotFound("Servable not found for request: Latest(m)")

    monkeypatch.setattr(service, "acquire", acquire)
    error = refusal(service, ModelSpec("m"))
    assert (type(error), error.message) == (NotFound, "Request for unknown model: 'm' has no available versions")


def test_versions_that_answer_are_listed_in_ascending_order() -> None:
    service = FakeService()
    service.statuses = [status(9, State.AVAILABLE), status(8, State.END), status(7, State.AVAILABLE)]
    assert available_versions(service, "m") == (7, 9)
    assert available_versions(service, "n") == ()
    assert describe_model(service, ModelSpec("m")).versions == (7, 9)
    assert describe_model(service, ModelSpec("m", 7)).versions == (7,)
    assert why_model_not_ready(service, ModelSpec("m")) == ""
