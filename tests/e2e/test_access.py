"""Tests of clients with keys and tokens against a real server, with httpx and grpcio."""

import base64
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf import text_format

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.access import AUDIENCE, ISSUER, KeyFile, TokenIssuer
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, PermissionDenied, Unauthenticated
from tpuserve_formats.messages.official import ReloadConfigRequest
from tpuserve_formats.messages.oip import (
    ModelInferRequest,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelUnloadRequest,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

BODY = {"instances": [[0.5] * 64]}
ROW = {"x": np.full((1, 64), 0.5, np.float32)}


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. The test's timeout is the limit."""
    while not condition():
        threading.Event().wait(0.05)


@dataclass
class Guarded:
    """A server with models `m` and `n`, and its clients."""

    server: RunningServer
    keys: KeyFile
    issuer: TokenIssuer

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: object = None) -> httpx.Response:
        return httpx.request(method, self.server.rest + path, headers=headers, json=body, timeout=60)

    def status(self, method: str, path: str, name: str | None, body: object = None) -> int:
        return self.ask(method, path, None if name is None else self.keys.bearer(name), body).status_code


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    for name in ("m", "n"):
        write_manifest(save_mlp(folder / "models" / name / "1", seed=1))
    config = folder / "models.config"
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{folder}/models/{name}" model_platform: "tensorflow" }}\n'
        for name in ("m", "n")
    )
    config.write_text(f"model_config_list {{ {entries} }}")
    keys, issuer = KeyFile(folder / "credentials"), TokenIssuer()
    keys.add("admin", "predict,read,control")
    keys.add("caller", "predict")
    keys.add("reader", "read")
    keys.add("shop", "predict,read", "m")
    jwks = folder / "jwks.json"
    jwks.write_text(issuer.jwks())
    flags = (
        f"--model_config_file={config}",
        f"--credentials_file={keys.path}",
        f"--jwt_jwks_file={jwks}",
        f"--jwt_issuer={ISSUER}",
        f"--jwt_audience={AUDIENCE}",
        "--credentials_poll_wait_seconds=0.1",
        "--access_log=errors",
        "--log_format=json",
    )
    with run_configured_server(folder / "log", *flags, model="m", headers=keys.bearer("admin")) as server:
        yield Guarded(server, keys, issuer)
        log = server.log.read_text()
        assert not [key for key in keys.keys.values() if key in log]


def test_rest_answers_by_role_and_model(guarded: Guarded) -> None:
    predict, other = "/v1/models/m:predict", "/v1/models/n:predict"
    assert [guarded.status("POST", predict, name, BODY) for name in ("admin", "caller", "shop")] == [200] * 3
    assert guarded.status("POST", predict, "reader", BODY) == 403
    assert guarded.status("POST", predict, None, BODY) == 401
    assert guarded.status("POST", other, "shop", BODY) == 403
    assert guarded.status("POST", "/v1/models/unknown:predict", "shop", BODY) == 403
    assert guarded.status("GET", "/metrics", "reader") == 200
    assert guarded.status("GET", "/metrics", "shop") == 403
    assert guarded.status("GET", "/nothing", None) == 401
    assert guarded.status("GET", "/nothing", "caller") == 404


def test_every_way_to_send_a_key_works(guarded: Guarded) -> None:
    key = guarded.keys.keys["reader"]
    basic = base64.b64encode(f"anyone:{key}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"Authorization": f"bearer {key}"},
        {"x-api-key": key},
        {"authorization": f"Basic {basic}"},
        {"authorization": "Bearer of another gateway", "x-api-key": key},
    ):
        assert guarded.ask("GET", "/v1/models/m", headers).status_code == 200, headers


def test_refusals_ask_for_credentials_in_the_form_of_the_path(guarded: Guarded) -> None:
    response = guarded.ask("GET", "/v1/models/m")
    assert response.headers["www-authenticate"] == 'Bearer realm="tpuserve"'
    assert "needs a credential with the role read" in response.json()["error"]
    assert guarded.ask("GET", "/console").headers["www-authenticate"].startswith("Basic ")
    wrong = guarded.ask("GET", "/v1/models/m", {"x-api-key": "tpuserve_wrong"})
    assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, 'Bearer realm="tpuserve"')
    assert "tpuserve_wrong" not in wrong.text
    denied = guarded.ask("POST", "/v1/models/m:predict", guarded.keys.bearer("reader"), BODY)
    assert denied.json()["error"] == (
        "The client 'reader' has the role read, but /v1/models/m:predict needs the role predict"
    )


def test_tokens_have_roles(guarded: Guarded) -> None:
    token = guarded.issuer.token(roles=["predict", "of another service"])
    for _ in range(2):
        assert guarded.ask("POST", "/v1/models/m:predict", {"authorization": f"Bearer {token}"}, BODY).is_success
    refused = guarded.ask("GET", "/v1/models", {"authorization": f"Bearer {token}"})
    assert (refused.status_code, "The client 'robot' has the role predict" in refused.text) == (403, True)
    expired = guarded.issuer.token(roles="predict", lifetime_s=-3600)
    response = guarded.ask("GET", "/v1/models", {"authorization": f"Bearer {expired}"})
    assert (response.status_code, "The token has expired at 20" in response.text) == (401, True)


def test_grpc_answers_by_role_and_model(guarded: Guarded) -> None:
    def client(name: str) -> Client:
        return Client(guarded.server.grpc, headers=guarded.keys.bearer(name))

    for name in ("caller", "shop", "admin"):
        with client(name) as allowed:
            assert allowed.predict("m", ROW)
    with client("reader") as reader, pytest.raises(PermissionDenied, match="'reader' has the role read"):
        reader.predict("m", ROW)
    with client("shop") as shop, pytest.raises(PermissionDenied, match="'shop' may not use the model 'n'"):
        shop.predict("n", ROW)
    with Client(guarded.server.grpc) as anonymous, pytest.raises(Unauthenticated, match="role predict"):
        anonymous.predict("m", ROW)


def call(guarded: Guarded, name: str | None, method: str, body: bytes = b"") -> bytes:
    """Call a method of the Open Inference Protocol. Raises grpc.RpcError."""
    metadata = () if name is None else (("x-api-key", guarded.keys.keys[name]),)
    with grpc.insecure_channel(guarded.server.grpc) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}"
        )
        return bytes(ask(body, metadata=metadata, timeout=60))


def test_grpc_methods_of_all_kinds_are_guarded(guarded: Guarded) -> None:
    assert call(guarded, None, "ServerLive")
    index = RepositoryIndexResponse.FromString(call(guarded, "shop", "RepositoryIndex"))
    assert {model.name for model in index.models} == {"m"}
    with pytest.raises(grpc.RpcError) as missing:
        call(guarded, None, "RepositoryIndex", RepositoryIndexRequest().SerializeToString())
    assert missing.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as denied:
        call(guarded, "shop", "RepositoryModelUnload", RepositoryModelUnloadRequest(model_name="m").SerializeToString())
    assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with grpc.insecure_channel(guarded.server.grpc) as channel:
        stream: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer"
        )
        requests = iter([ModelInferRequest(model_name="m").SerializeToString()])
        with pytest.raises(grpc.RpcError) as refused:
            next(stream(requests, timeout=60))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_probes_are_open_and_name_no_model(guarded: Guarded) -> None:
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert guarded.status("GET", path, None) == 200
        assert guarded.ask("GET", path, {"authorization": "Bearer expired"}).status_code == 200


def test_lists_have_the_models_of_the_client(guarded: Guarded) -> None:
    def names(name: str) -> list[str]:
        return [model["name"] for model in guarded.ask("GET", "/v1/models", guarded.keys.bearer(name)).json()["models"]]

    assert (names("shop"), names("reader")) == (["m"], ["m", "n"])


def test_refused_requests_are_counted_and_logged_with_the_client(guarded: Guarded) -> None:
    assert guarded.status("GET", "/v1/models/m", "caller") == 403
    page = guarded.ask("GET", "/metrics", guarded.keys.bearer("admin")).text
    assert 'code="PERMISSION_DENIED"' in page
    lines = [json.loads(line) for line in guarded.server.log.read_text().splitlines() if line.startswith("{")]
    refused = [line for line in lines if line.get("code") == "PERMISSION_DENIED" and line["method"] == "GetModelStatus"]
    assert refused[-1]["client"] == "caller"


def test_a_changed_file_replaces_the_keys_and_a_bad_one_does_not(guarded: Guarded, tmp_path: Path) -> None:
    guarded.keys.add("late", "read")

    def is_known() -> bool:
        return guarded.status("GET", "/v1/models/m", "late") == 200

    wait_until(is_known)
    good = guarded.keys.path.read_text()
    guarded.keys.path.write_text(f"{good}late control\n")

    def problem() -> str:
        document = guarded.ask("GET", "/debug/status", guarded.keys.bearer("admin")).json()
        return str(document["access"]["problem"])

    wait_until(lambda: problem() != "")
    number = len(good.splitlines()) + 1
    assert problem().startswith(f"credentials_file: line {number}: 2 words")
    assert is_known()
    guarded.keys.path.write_text(good)
    wait_until(lambda: problem() == "")


def reload_outcome(guarded: Guarded, config: str) -> tuple[str, str]:
    """Send a reload with the key of `admin`, and return the code and the message of its error."""
    request = ReloadConfigRequest()
    text_format.Parse(config, request.config)
    with grpc.insecure_channel(guarded.server.grpc) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
        )
        metadata = (("x-api-key", guarded.keys.keys["admin"]),)
        with pytest.raises(grpc.RpcError) as caught:
            ask(request.SerializeToString(), metadata=metadata, timeout=60)
    return caught.value.code().name, caught.value.details() or ""


def test_the_limits_of_a_reload_hold_with_a_key(guarded: Guarded, tmp_path: Path) -> None:
    base_path = guarded.keys.path.parent / "models" / "m"
    model = f'config {{ name: "m" model_platform: "tensorflow" base_path: "{base_path}" %s }}'
    collector = 'log_collector_config { type: "jsonl" filename_prefix: "%s" }'
    log = f"logging_config {{ {collector} sampling_config {{ sampling_rate: 1 }} }}"
    etc = 'config { name: "etc" model_platform: "tensorflow" base_path: "/etc" }'
    http = 'config { name: "far" model_platform: "tensorflow" base_path: "http://10.0.0.1/models" }'
    attacks = {
        "log prefix": model % (log % (tmp_path / "requests")),
        "http": f"{model % ''} {http}",
        "/etc": f"{model % ''} {etc}",
        "dots": model.replace(str(base_path), f"{base_path}/../../../../etc") % "",
    }
    outcomes = {name: reload_outcome(guarded, f"model_config_list {{ {config} }}") for name, config in attacks.items()}
    print(f"\n{outcomes}")
    assert {name: code for name, (code, _) in outcomes.items()} == dict.fromkeys(attacks, "PERMISSION_DENIED")
    assert not list(tmp_path.iterdir())
    assert reload_outcome(guarded, "model_config_list { }")[0] == "FAILED_PRECONDITION"
    assert guarded.status("POST", "/v1/models/n:predict", "admin", BODY) == 200


def test_sighup_reads_the_keys_again(guarded: Guarded) -> None:
    guarded.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "The credentials have not changed" in guarded.server.log.read_text())
