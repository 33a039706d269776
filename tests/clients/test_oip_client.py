"""Tests for both clients over the Open Inference Protocol, against a real server of each transport."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import Failure, ModelServer
from tests.clients.oip_bodies import strings
from tests.clients.oip_faces import OIP, serving_oip
from tests.support.certificates import Authority, ServerTls
from tpuserve_client import (
    Attempt,
    Client,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    State,
    Tls,
    TpuserveError,
    Unavailable,
    VersionStatus,
)
from tpuserve_client.errors import Code

pytestmark = pytest.mark.parametrize("protocol", OIP, indirect=True)

X = np.arange(8, dtype=np.float32).reshape(2, 4)
USE_TF = "Use an address of TensorFlow Serving's protocol, host:port or http://host:port"


def test_prediction_has_outputs_with_their_dtypes_and_the_version(client: Client) -> None:
    prediction = client.predict("affine", {"x": X})
    np.testing.assert_array_equal(prediction["y"], X * 2 + 1)
    assert {name: array.dtype.name for name, array in prediction.items()} == {"y": "float32", "best": "int64"}
    assert (prediction.model, prediction.version, prediction.signature_name) == ("affine", 7, "serving_default")


def test_lists_take_name_and_dtype_from_the_metadata_which_is_fetched_once(client: Client, server: ModelServer) -> None:
    for _ in range(2):
        assert client.predict("single", [[[1, 2], [3, 4]]])["sum"].tolist() == [10.0]
    assert server.methods() == ["ModelMetadata", "ModelInfer", "ModelInfer"]


def test_every_dtype_and_shape_makes_the_round_trip(client: Client) -> None:
    sent = {
        "half": np.array([-1.5, 2], np.float16),
        "brain": np.array([-1.5, 2], ml_dtypes.bfloat16),
        "double": np.array([1e300, np.nan], np.float64),
        "bool": np.array([[True, False]]),
        "unsigned": np.array([0, 2**64 - 1], np.uint64),
        "byte": np.array([-128, 127], np.int8),
        "big-endian": np.array([1, -2], ">i4"),
        "columns": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "scalar": np.array(5, np.int32),
        "zero rows": np.zeros((0, 4), np.float32),
        "texts": strings(b"plain", "größe".encode(), b"\x00\xff", b""),
    }
    received = client.predict("mirror", sent)
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert received[name].dtype == array.dtype.newbyteorder("=")
        assert received[name].shape == array.shape
        np.testing.assert_array_equal(received[name], array)


def test_version_signature_and_requested_outputs_reach_the_server(client: Client, server: ModelServer) -> None:
    prediction = client.predict("affine", {"x": X}, version=5, signature_name="serving", output_filter="best")
    assert set(prediction) == {"best"}
    assert (prediction.version, prediction.signature_name) == (5, "serving")
    [served] = server.served
    assert (served.model, served.version, served.signature, served.output_filter) == ("affine", 5, "serving", ("best",))


@pytest.mark.parametrize(("priority", "number"), [("high", "0"), ("low", "2"), (None, None)])
def test_priority_is_a_parameter(client: Client, server: ModelServer, priority: Any, number: str | None) -> None:  # noqa: ANN401 - a Literal
    client.predict("affine", {"x": X}, priority=priority)
    assert [served.priority for served in server.served] == [number]
    assert "x-tpuserve-priority" not in server.served[0].headers


def test_deadline_reaches_the_server_and_ends_the_call(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X}, timeout_s=8.0)
    assert server.served[0].time_left_s is not None
    assert 0.0 < server.served[0].time_left_s < 8.5
    server.gate.clear()
    try:
        with pytest.raises(DeadlineExceeded):
            client.predict("affine", {"x": X}, timeout_s=0.2)
    finally:
        server.gate.set()


@pytest.mark.parametrize(
    ("method", "arguments", "lacks"),
    [
        ("predict", {"inputs": {"x": X}, "label": "stable"}, "version labels"),
        ("metadata", {"label": "stable"}, "version labels"),
        ("metadata", {"with_labels": True}, "labels of classes"),
        ("classify", {"examples": [{"x": 1}]}, "Classify"),
        ("regress", {"examples": [{"x": 1}]}, "Regress"),
        ("predict", {"inputs": {"x": np.array([1j])}}, "Input x: dtype complex128 has no datatype"),
        ("predict", {"inputs": [[1]], "signature_name": "other"}, "does not describe signature 'other'"),
        (
            "predict",
            {"inputs": {"x": X}, "max_batch_size": 1, "signature_name": "other"},
            "without max_batch_size",
        ),
    ],
)
def test_a_call_that_the_protocol_lacks_is_refused_before_it_is_sent(
    client: Client, server: ModelServer, method: str, arguments: dict[str, Any], lacks: str
) -> None:
    with pytest.raises(InvalidArgument, match=lacks) as raised:
        getattr(client, method)("affine", **arguments)
    assert USE_TF in raised.value.message
    assert set(server.methods()) <= {"ModelMetadata"}


def test_metadata_describes_one_signature_of_the_latest_version(client: Client) -> None:
    metadata = client.metadata("pair")
    assert (metadata.model, metadata.version, list(metadata.signatures)) == ("pair", 7, ["serving_default"])
    assert str(metadata.signature().inputs["a"]) == "a: int64[]"
    assert str(metadata.signature("serving_default").outputs["b"]) == "b: string[?]"
    assert client.metadata("pair", version=3).version == 3


def test_status_lists_the_ready_versions(client: Client) -> None:
    assert client.status("affine") == (VersionStatus(7, State.AVAILABLE), VersionStatus(3, State.AVAILABLE))
    assert client.status("affine", version=3) == (VersionStatus(3, State.AVAILABLE),)


def test_readiness_is_the_servers_and_the_models(client: Client, server: ModelServer) -> None:
    for ready in (True, False):
        server.ready = ready
        assert client.is_ready() is ready
        assert client.is_ready("affine", version=7) is ready
    assert server.methods() == ["ServerReady", "ModelReady"] * 2
    assert server.served[1].version == 7
    server.failures.append(Failure(Code.NOT_FOUND))
    assert not client.is_ready("affine")


def test_waiting_ends_when_the_model_is_ready(timed_client: Client, server: ModelServer) -> None:
    server.failures.extend([Failure(Code.NOT_FOUND), Failure(Code.UNAVAILABLE)])
    timed_client.wait_until_ready(60.0, "affine")
    assert server.methods() == ["ModelReady"] * 3
    server.ready = False
    with pytest.raises(DeadlineExceeded, match="Model affine was not ready within 60 s: "):
        timed_client.wait_until_ready(60.0, "affine")


@pytest.mark.parametrize(("code", "error"), [(Code.INVALID_ARGUMENT, InvalidArgument), (Code.NOT_FOUND, NotFound)])
def test_failure_is_a_typed_error_with_the_servers_message(
    client: Client, server: ModelServer, code: Code, error: type[TpuserveError]
) -> None:
    for method in (lambda: client.predict("affine", {"x": X}), lambda: client.metadata("affine")):
        server.failures.append(Failure(code, "what the server said"))
        with pytest.raises(error, match="what the server said"):
            method()
    assert len(server.served) == 2


def test_unavailable_is_retried_after_the_servers_hint(
    kind: str, address: str, server: ModelServer, clock: Clock, protocol: str
) -> None:
    hint = {"oip-grpc": {"grpc-retry-pushback-ms": "20000"}, "oip-rest": {"retry-after": "20"}}[protocol]
    server.failures.append(Failure(Code.UNAVAILABLE, headers=hint))
    attempts: list[Attempt] = []
    with make_client(kind, address, clock, on_attempt=attempts.append) as client:
        client.predict("affine", {"x": X})
    assert clock.pauses_s == [20.0]
    assert [attempt.error is None for attempt in attempts] == [False, True]
    assert attempts[0].path in ("/inference.GRPCInferenceService/ModelInfer", "/v2/models/affine/infer")


def test_no_connection_is_unavailable(kind: str, protocol: str, clock: Clock) -> None:
    with serving_oip(ModelServer(), protocol) as address:
        pass  # the server stops at once
    with make_client(kind, address, clock) as client:
        with pytest.raises(Unavailable):
            client.status("affine")
        assert not client.is_ready()


def test_rows_are_divided_and_go_to_one_version(client: Client, server: ModelServer) -> None:
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.testing.assert_array_equal(client.predict("affine", x, max_batch_size=4)["y"], x * 2 + 1)
    assert server.methods() == ["ModelMetadata"] + ["ModelInfer"] * 3
    assert {served.version for served in server.served[1:]} == {7}


def test_pickled_client_connects_by_itself(address: str, protocol: str) -> None:
    with Client(address) as client:
        copy = pickle.loads(pickle.dumps(client))
    with copy:
        assert copy.predict("affine", {"x": X}).version == 7


def test_tls_is_the_schemes(protocol: str, kind: str, tmp_path: Any) -> None:  # noqa: ANN401 - a Path
    authority = Authority(tmp_path)
    with serving_oip(ModelServer(), protocol, ServerTls(authority.issue("model.example"))) as address:
        assert address.startswith("oip+https://" if protocol == "oip-rest" else "oip+grpcs://")
        tls = Tls(ca=authority.ca, server_name="model.example")
        with make_client(kind, address, tls=tls) as client:
            assert client.predict("affine", {"x": X}).version == 7
