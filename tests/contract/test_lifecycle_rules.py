"""TensorFlow Serving's contract: the served versions while directories appear, disappear and change."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from grpc import RpcError, StatusCode
from tensorflow_serving.apis import get_model_status_pb2

from tests.contract.serving_client import ServingClient, predict_request
from tests.contract.serving_models import save_half_plus_two
from tests.e2e.running_server import run_configured_server
from tests.support.saved_models import save_broken
from tests.support.v1_models import save_unassigned

State = get_model_status_pb2.ModelVersionStatus.State


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """Return a function that builds the SavedModel y = x / 2 + plus, once for each `plus`."""
    folder = tmp_path_factory.mktemp("made")

    def make(plus: float) -> Path:
        path = folder / str(plus)
        return path if path.exists() else save_half_plus_two(path, plus)

    return make


@pytest.fixture
def watched(tmp_path: Path, made: Callable[[float], Path]) -> Iterator[tuple[ServingClient, Path]]:
    """Yield a server of model `m` and its base path, which contains version 1 (plus 1)."""
    base_path = tmp_path / "m"
    _put(made(1.0), base_path / "1")
    flags = ("--model_name=m", f"--model_base_path={base_path}", "--max_num_load_retries=0")
    with (
        run_configured_server(tmp_path / "log", *flags, model="m") as server,
        ServingClient(server.grpc, server.rest) as client,
    ):
        yield client, base_path


def _put(made: Path, target: Path) -> None:
    """Publish a version atomically: copy it under another name, then rename it."""
    copying = target.with_name(f"copying-{target.name}")
    shutil.copytree(made, copying)
    copying.rename(target)


def _plus(client: ServingClient) -> float:
    return float(client.predict(predict_request("m", x=[[0.0]])).outputs["y"].float_val[0])


def _states(client: ServingClient) -> dict[int, tuple[str, str]]:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    found = client.status(request).model_version_status
    return {v.version: (State.Name(v.state), v.status.error_message) for v in found}


def _wait_for(what: Callable[[], bool]) -> None:
    """Poll until the condition holds. The test's timeout is the bound."""
    while not what():
        pass


def test_versions_follow_their_directories(
    watched: tuple[ServingClient, Path], made: Callable[[float], Path], tmp_path: Path
) -> None:
    client, base_path = watched
    assert _plus(client) == 1.0

    # A higher version replaces the lower version, which unloads after the new version serves.
    _put(made(2.0), base_path / "00000002")
    _wait_for(lambda: _plus(client) == 2.0)
    _wait_for(lambda: _states(client)[1] == ("END", ""))
    assert _states(client)[2] == ("AVAILABLE", "")

    # A version that fails to load ends with its error, and the old version still serves.
    (base_path / "3").mkdir()
    (base_path / "3" / "saved_model.pb").write_bytes(b"no model")
    _wait_for(lambda: _states(client).get(3, ("", ""))[0] == "END")
    assert _states(client)[3][1]
    assert str(tmp_path) not in _states(client)[3][1]
    assert _plus(client) == 2.0

    # The server loads the version again after its contents change (upstream never does). One that could not answer any
    # request, as the graph or a made-up row shows, does not replace the old version.
    for save, reason in (
        (save_unassigned, "signature 'serving_default' reads the variable 'bias', which neither the checkpoint nor"),
        (save_broken, "the version cannot answer any request. signature 'serving_default' fails: No OpKernel was"),
    ):
        shutil.rmtree(base_path / "3")
        _put(save(tmp_path / save.__name__), base_path / "3")
        _wait_for(partial(_has_failed, client, 3, reason))
        assert client.get("/v1/models/m/versions/3").json["model_version_status"][0]["state"] == "END"
        assert _plus(client) == 2.0
    shutil.rmtree(base_path / "3")
    _put(made(3.0), base_path / "3")
    _wait_for(lambda: _plus(client) == 3.0)

    # The server unloads a deleted directory's version and serves the next lower version.
    shutil.rmtree(base_path / "3")
    _wait_for(lambda: _plus(client) == 2.0)

    # A name that is not an int64 is no version, and a negative number is never the latest version.
    _put(made(1.0), base_path / "latest")
    _put(made(1.0), base_path / "99999999999999999999")
    _put(made(1.0), base_path / "-5")

    # A missing base path changes nothing, even after the server has noticed it.
    base_path.rename(tmp_path / "away")
    _wait_for(lambda: f"its base path {base_path} does not exist" in (tmp_path / "log").read_text())
    assert _plus(client) == 2.0
    (tmp_path / "away").rename(base_path)
    _put(made(4.0), base_path / "4")
    _wait_for(lambda: _plus(client) == 4.0)
    assert _states(client).keys() <= {1, 2, 3, 4}

    # An empty base path removes the model.
    for child in base_path.iterdir():
        shutil.rmtree(child)
    _wait_for(lambda: _is_gone(client))


def _has_failed(client: ServingClient, version: int, reason: str) -> bool:
    state, error = _states(client).get(version, ("", ""))
    return state == "END" and error.startswith(reason)


def _is_gone(client: ServingClient) -> bool:
    try:
        _plus(client)
    except RpcError as error:
        return error.code() in {StatusCode.NOT_FOUND, StatusCode.UNAVAILABLE}
    return False
