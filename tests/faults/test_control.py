"""Tests for readiness and control requests: labels right after the start, empty and strange reloads (cases 38, 42)."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorflow_serving.apis import model_management_pb2

from tests.faults.faulted_server import OIP_GRPC, OIP_REST, TF_GRPC, TF_REST, Faults, good_body
from tpuserve_formats.messages.oip import ModelInferRequest

RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


def reload_body(models: Mapping[str, str], log_prefix: str | None = None) -> bytes:
    """Return a reload with these names and base paths. Requests are logged to `log_prefix`."""
    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()
    for name, base_path in models.items():
        config = request.config.model_config_list.config.add(
            name=name, base_path=base_path, model_platform="tensorflow"
        )
        if log_prefix is not None:
            config.logging_config.log_collector_config.type = "jsonl"
            config.logging_config.log_collector_config.filename_prefix = log_prefix
            config.logging_config.sampling_config.sampling_rate = 1
    return bytes(request.SerializeToString())


def test_every_version_and_label_is_served_once_the_server_is_ready(faults: Faults) -> None:
    with faults.fault(38, "requests by version and label right after ready", TF_REST, "200") as attempt:
        attempt.got = " ".join(sorted(set(faults.server.first_answers.values())))
        assert len(faults.server.first_answers) == 4


def test_reload_without_models_is_refused(faults: Faults) -> None:
    with faults.fault(38, "a reload without models", TF_GRPC, "FAILED_PRECONDITION") as attempt:
        attempt.got = faults.server.send(TF_GRPC, reload_body({}), path=RELOAD).got
        assert faults.server.http.get("/readyz").status_code == 200


# Outside the directories of the server's configuration.
FORBIDDEN = ("file:///etc", "/etc", "/../etc", "gs://nobody/m", "http://127.0.0.1:9/m", "ftp://127.0.0.1:9/m")


@pytest.mark.parametrize("path", [*FORBIDDEN, "relative/path", "", "\n", "/" + "a" * 5000])
def test_reload_with_a_bad_base_path_changes_nothing(faults: Faults, path: str) -> None:
    expected = "PERMISSION_DENIED" if path in FORBIDDEN else "INVALID_ARGUMENT"
    shown = repr(path) if len(path) < 30 else "of 5,000 characters"
    with faults.fault(42, f"a reload with the base path {shown}", TF_GRPC, expected) as attempt:
        attempt.got = refused_reload(faults, reload_body({"m": path}))


def refused_reload(faults: Faults, body: bytes) -> str:
    """Send a reload and return its code. Its message must show nothing of the server."""
    answer = faults.server.send(TF_GRPC, body, path=RELOAD)
    assert "Traceback" not in answer.text
    assert "/tmp" not in answer.text
    return answer.got


@pytest.mark.parametrize(
    ("name", "shown"), [("m\n", "a newline"), ("m\x1b[31m", "an escape"), ("a" * 1000, "1,000 characters")]
)
def test_reload_with_a_bad_name_changes_nothing(faults: Faults, fault_models: Path, name: str, shown: str) -> None:
    with faults.fault(42, f"a reload with {shown} in a name", TF_GRPC, "INVALID_ARGUMENT") as attempt:
        attempt.got = refused_reload(faults, reload_body({name: str(fault_models / "m")}))


def test_reload_with_a_log_outside_the_roots_creates_nothing(
    faults: Faults, fault_models: Path, tmp_path: Path
) -> None:
    with faults.fault(42, "a reload with a request log in another directory", TF_GRPC, "PERMISSION_DENIED") as attempt:
        # Only the client's own path may be in the message.
        answer = faults.server.send(
            TF_GRPC, reload_body({"m": str(fault_models / "m")}, str(tmp_path / "log")), path=RELOAD
        )
        attempt.got = answer.got
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("protocol", "path", "expected"),
    [
        (OIP_REST, "/v2/repository/models/nobody/load", ("400", "404", "500")),
        (OIP_REST, "/v2/repository/models/nobody/unload", ("400", "404", "500", "200")),
        (OIP_REST, "/v2/models/nobody/trace/setting", ("400", "404")),
        (OIP_REST, "/v2/systemsharedmemory/region/nobody/register", ("400", "404")),
        (TF_REST, "/v1/models/nobody:predict", ("404",)),
    ],
)
def test_control_of_an_unknown_model_changes_nothing(
    faults: Faults, protocol: str, path: str, expected: tuple[str, ...]
) -> None:
    with faults.fault(42, f"POST {path}", protocol, *expected) as attempt:
        attempt.got = faults.server.send(protocol, b"{}", path=path).got


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "/../x", "/tpuserve-test-none", "", "/", "/a\0b", "/" + "a" * 10_000]
)
def test_shared_memory_of_a_strange_key_is_refused(faults: Faults, key: str) -> None:
    shown = key if len(key) < 30 else "10,000 characters"
    with faults.fault(42, f"shared memory key {shown!r}", OIP_REST, "400", "404") as attempt:
        body = {"key": key, "offset": 0, "byte_size": 16}
        answer = faults.server.http.post("/v2/systemsharedmemory/region/r/register", json=body)
        attempt.got = str(answer.status_code)
        # The name of another client's object would let this client read it (CVE-2025-23320).
        assert "/dev/shm" not in answer.text


def test_stream_with_bad_messages_answers_the_good_ones(faults: Faults) -> None:
    good = good_body(OIP_GRPC)
    unknown = ModelInferRequest(model_name="nobody", id="1").SerializeToString()
    stream = faults.server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    with faults.fault(5, "a stream of 10 good and 10 bad messages", OIP_GRPC, "20 answers") as attempt:
        attempt.got = f"{len(list(stream(iter([good, unknown] * 10), timeout=60)))} answers"
