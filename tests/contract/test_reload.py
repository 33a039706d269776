"""TensorFlow Serving's contract: ModelService.HandleReloadConfigRequest (server_core.cc, server_core_test.cc)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from grpc import RpcError, StatusCode
from tensorflow_serving.apis import model_management_pb2

from tests.contract.conftest import FIRST, SECOND, Models, wait_for_half
from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.contract.serving_models import save_half_plus_two
from tests.e2e.running_server import run_configured_server

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def reloading(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingClient]:
    """Yield a server whose configuration the tests change. Each test first sets the configuration that it needs."""
    folder = tmp_path_factory.mktemp("reload")
    config = folder / "models.config"
    config.write_text(models.config())
    flags = (
        f"--model_config_file={config}",
        "--max_num_load_retries=0",
        f"--reload_roots={tmp_path_factory.getbasetemp()}",
    )
    with (
        run_configured_server(folder / "log", *flags, model="kinds") as server,
        ServingClient(server.grpc, server.rest) as client,
    ):
        wait_for_half(server.grpc)
        yield client


def _model(name: str, path: Path, *more: str) -> str:
    return f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" {" ".join(more)} }}'


def _label(name: str, version: int) -> str:
    return f'version_labels {{ key: "{name}" value: {version} }}'


ALL = "model_version_policy { all {} }"


def _reload(client: ServingClient, *configs: str) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(f"model_config_list {{ {' '.join(configs)} }}", request.config)
    response = client.reload(request)
    assert (response.status.error_code, response.status.error_message) == (0, "")


def _serve_half(client: ServingClient, models: Models) -> None:
    """Serve both versions of `half`, and wait for them: a reload waits only for new models."""
    _reload(client, _model("half", models.half, ALL))
    wait_for_half(client.grpc_address)


def _ask(client: ServingClient, model: str = "half", version: int | None = None, label: str = "") -> float:
    request = predict_request(model, x=[[2.0]])
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    return float(client.predict(request).outputs["y"].float_val[0])


def _wait_until_gone(client: ServingClient, model: str, version: int | None = None) -> None:
    """Wait for a background unload: the version responds until the unload, then requests return NOT_FOUND."""
    while (code := _code(client, model, version)) is StatusCode.OK:
        pass
    assert code is StatusCode.NOT_FOUND


def _code(client: ServingClient, model: str, version: int | None) -> StatusCode:
    try:
        _ask(client, model, version)
    except RpcError as error:
        return error.code()
    return StatusCode.OK


def test_a_new_model_answers_when_the_reload_returns(reloading: ServingClient, models: Models) -> None:
    _reload(reloading, _model("half", models.half, ALL))
    _reload(reloading, _model("half", models.half, ALL), _model("again", models.half))
    assert _ask(reloading, "again") == 4.0


def test_a_model_that_is_left_out_is_unloaded(reloading: ServingClient, models: Models) -> None:
    _reload(reloading, _model("half", models.half, ALL), _model("again", models.half))
    _reload(reloading, _model("half", models.half, ALL))
    _wait_until_gone(reloading, "again")


def test_a_label_moves(reloading: ServingClient, models: Models) -> None:
    _reload(reloading, _model("half", models.half, ALL, _label("live", FIRST)))
    assert _ask(reloading, label="live") == 3.0
    _reload(reloading, _model("half", models.half, ALL, _label("live", SECOND)))
    assert _ask(reloading, label="live") == 4.0


def test_a_label_that_is_left_out_is_gone(reloading: ServingClient, models: Models) -> None:
    _reload(reloading, _model("half", models.half, ALL, _label("live", FIRST)))
    _reload(reloading, _model("half", models.half, ALL))
    with refused(StatusCode.INVALID_ARGUMENT, "Unrecognized servable version label: live"):
        _ask(reloading, label="live")


def test_a_label_to_a_version_that_the_same_reload_brings(reloading: ServingClient, models: Models) -> None:
    """Assign a label to a version of the same reload. Upstream checks labels before versions load (issue 1608)."""
    _reload(reloading, _model("half", models.half))
    only_first = "model_version_policy { specific { versions: 123 } }"
    _reload(reloading, _model("fresh", models.half, only_first, _label("old", FIRST)))
    assert _ask(reloading, "fresh", label="old") == 3.0


def test_a_label_to_a_version_that_is_not_there(reloading: ServingClient, models: Models) -> None:
    _reload(reloading, _model("half", models.half, ALL, _label("live", FIRST)))
    message = "Request to assign label to version 9 of model half, which is not currently available for inference"
    with refused(StatusCode.FAILED_PRECONDITION, message):
        _reload(reloading, _model("half", models.half, ALL, _label("live", 9)))
    assert _ask(reloading, label="live") == 3.0


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", [SECOND]),
        ("model_version_policy { latest { num_versions: 2 } }", [SECOND, FIRST]),
        ("model_version_policy { specific { versions: 123 } }", [FIRST]),
        (ALL, [SECOND, FIRST]),
    ],
    ids=["default", "latest 2", "specific", "all"],
)
def test_version_policies(reloading: ServingClient, models: Models, policy: str, versions: list[int]) -> None:
    # A reload waits only for new models, so the test first removes a model of this name.
    _reload(reloading, _model("half", models.half))
    _wait_until_gone(reloading, "chosen")
    _reload(reloading, _model("chosen", models.half, policy))
    # The reload waits for one version of the model, like upstream. The other versions may load later.
    for version in versions:
        # tpuserve answers UNAVAILABLE, which clients retry.
        while _code(reloading, "chosen", version) in {StatusCode.NOT_FOUND, StatusCode.UNAVAILABLE}:
            pass
    answers = {version: _ask(reloading, "chosen", version) for version in versions}
    assert answers == {version: {FIRST: 3.0, SECOND: 4.0}[version] for version in versions}
    for other in {FIRST, SECOND}.difference(versions):
        _wait_until_gone(reloading, "chosen", other)


def test_a_new_model_that_cannot_be_loaded(reloading: ServingClient, models: Models, tmp_path: Path) -> None:
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "saved_model.pb").write_bytes(b"no")
    _serve_half(reloading, models)
    with pytest.raises(RpcError) as caught:
        _reload(reloading, _model("half", models.half, ALL), _model("bad", tmp_path / "bad"))
    assert "bad" in (caught.value.details() or "")
    assert str(tmp_path) not in (caught.value.details() or "")
    assert _ask(reloading) == 4.0


def test_a_new_model_with_a_version_that_comes_later(reloading: ServingClient, models: Models, tmp_path: Path) -> None:
    base_path = tmp_path / "late"
    base_path.mkdir()
    save_half_plus_two(tmp_path / "made" / "1")
    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(f"model_config_list {{ {_model('late', base_path)} }}", request.config)
    pending = reloading.model.HandleReloadConfigRequest.future(request, timeout=60)
    (tmp_path / "made" / "1").rename(base_path / "1")
    assert pending.result().status.error_code == 0
    assert _ask(reloading, "late") == 3.0


# Rejected reloads: nothing changes.


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([_model("m", Path("/a")), _model("m", Path("/a"))], "Illegal to list model m multiple times in config list"),
        (
            [_model("m", Path("relative"))],
            "Expected model m to have an absolute path or URI; got base_path()=relative",
        ),
        (['config { name: "m" base_path: "/a" model_platform: "caffe" }'], "caffe"),
        (['config { name: "half" base_path: "/a" model_platform: "other" }'], "platform"),
    ],
    ids=["twice", "relative path", "unknown platform", "changed platform"],
)
def test_refused_configurations(reloading: ServingClient, models: Models, configs: list[str], message: str) -> None:
    _serve_half(reloading, models)
    with refused(StatusCode.INVALID_ARGUMENT, message):
        _reload(reloading, *configs)
    assert _ask(reloading) == 4.0


def test_a_configuration_of_another_kind(reloading: ServingClient) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    request.config.custom_model_config.type_url = "type.googleapis.com/some.Message"
    with refused(StatusCode.INVALID_ARGUMENT, "Only ModelConfigList is currently supported"):
        reloading.reload(request)


def test_an_empty_request(reloading: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "ModelConfigList"):
        reloading.reload(model_management_pb2.ReloadConfigRequest())
