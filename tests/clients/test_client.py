"""Tests for the behaviour that both clients share over both protocols, against a real server."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import FLOAT, Failure, ModelServer, Served, run_model, serving
from tpuserve_client import (
    Client,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Retry,
    State,
    TpuserveError,
    Unavailable,
    VersionStatus,
)
from tpuserve_client.dtypes import to_wire
from tpuserve_client.errors import Code

RETRY_AFTER_20_S = {"grpc": {"grpc-retry-pushback-ms": "20000"}, "rest": {"retry-after": "20"}}
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_prediction_has_outputs_with_their_dtypes_and_says_what_made_them(client: Client) -> None:
    prediction = client.predict("affine", {"x": X})
    np.testing.assert_array_equal(prediction["y"], X * 2 + 1)
    assert prediction["y"].dtype == np.float32
    np.testing.assert_array_equal(prediction["best"], [3, 3])
    assert prediction["best"].dtype == np.int64
    assert set(prediction) == {"y", "best"}
    assert (prediction.model, prediction.version, prediction.signature_name) == ("affine", 7, "serving_default")


def test_bare_array_goes_to_the_only_input_whose_name_is_fetched_once(client: Client, server: ModelServer) -> None:
    for _ in range(2):
        assert client.predict("single", np.ones((1, 2, 2), np.float32))["sum"].tolist() == [4.0]
    assert server.methods().count("GetModelMetadata") == 1
    assert server.methods().count("Predict") == 2


def test_lists_take_the_dtype_of_the_input(client: Client) -> None:
    assert client.predict("affine", {"x": [[1, 2, 3, 4]]})["y"].tolist() == [[3.0, 5.0, 7.0, 9.0]]
    assert client.predict("single", [[[1, 2], [3, 4]]])["sum"].tolist() == [10.0]


def test_bare_array_is_refused_where_there_are_two_inputs(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"2 inputs \['a', 'b'\]"):
        client.predict("pair", [1])


def test_ragged_list_is_refused_before_anything_is_predicted(client: Client, server: ModelServer) -> None:
    with pytest.raises(InvalidArgument, match="Not an array"):
        client.predict("affine", {"x": [[1, 2], [3]]})
    assert "Predict" not in server.methods()


def test_version_label_and_signature_reach_the_server(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X}, version=5, signature_name="serving_default")
    client.predict("affine", {"x": X}, label="stable")
    predicts = [served for served in server.served if served.method == "Predict"]
    assert [(served.version, served.label) for served in predicts] == [(5, None), (None, "stable")]
    assert predicts[0].signature == "serving_default"


def test_version_and_label_together_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        client.predict("affine", {"x": X}, version=5, label="stable")


def test_model_name_is_quoted_in_the_path(client: Client, server: ModelServer) -> None:
    server.signatures["odd name%"] = server.signatures["single"]
    client.predict("odd name%", {"image": np.ones((1, 2, 2), np.float32)}, output_filter=[])
    assert server.served[0].model == "odd name%"


@pytest.mark.parametrize("output_filter", [["best"], ("best",), {"best"}, "best"])
def test_output_filter_leaves_the_outputs_asked_for(client: Client, output_filter: Any) -> None:  # noqa: ANN401 - several types
    assert set(client.predict("affine", {"x": X}, output_filter=output_filter)) == {"best"}


@pytest.mark.parametrize("protocol", ["rest"], indirect=True)
def test_output_filter_refuses_a_name_twice_like_the_server(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="duplicate output tensor alias: best"):
        client.predict("affine", {"x": X}, output_filter=["best", "y", "best"])


def test_strings_and_scalars_make_the_round_trip(client: Client) -> None:
    words: list[bytes | str] = [b"plain", "größe", b"\x00\xff\x00"]
    outputs = client.predict("pair", {"a": np.int64(3), "b": words})
    assert outputs["b"].tolist() == [b"plain", "größe".encode(), b"\x00\xff\x00"]


@pytest.mark.parametrize("values", [[1.5, -0.0, np.inf, -np.inf, np.nan], [3.4028235e38, 1e-45, 0.1, 1 / 3, 2e-7]])
def test_every_float32_reads_back_to_the_same_bits(client: Client, server: ModelServer, values: list[float]) -> None:
    server.signatures["mirror"] = (
        {"x": (FLOAT, [-1])},
        {"x": (FLOAT, [-1])},
    )
    sent = np.array(values, np.float32)
    received = client.predict("mirror", {"x": sent})["x"]
    assert received.tobytes() == sent.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.array([-1.5, 2], np.float16),
        np.array([-1.5, 2], ml_dtypes.bfloat16),
        np.array([1e300, 2], np.float64),
        np.array([-128, 127], np.int8),
        np.array([0, 255], np.uint8),
        np.array([-32768, 32767], np.int16),
        np.array([0, 65535], np.uint16),
        np.array([-(2**31), 2**31 - 1], np.int32),
        np.array([0, 2**32 - 1], np.uint32),
        np.array([-(2**63), 2**63 - 1], np.int64),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([True, False]),
        np.array([[[1, 2], [3, 4]]], np.int32),
        np.array(5, np.int32),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_every_dtype_makes_the_round_trip(client: Client, server: ModelServer, array: np.ndarray[Any, Any]) -> None:
    spec = {"x": (to_wire(array.dtype), [-1] * array.ndim)}
    server.signatures["mirror"] = (spec, spec)
    received = client.predict("mirror", {"x": array})["x"]
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    assert received.tobytes() == array.tobytes()


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_complex_numbers_go_over_grpc(client: Client) -> None:
    array = np.array([1 + 2j, -3j], np.complex64)
    assert client.predict("mirror", {"x": array})["x"].tolist() == array.tolist()


@pytest.mark.parametrize("protocol", ["rest"], indirect=True)
def test_complex_numbers_are_refused_for_rest(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="Use gRPC"):
        client.predict("mirror", {"x": np.array([1j])})


def test_output_without_rows_keeps_its_inner_dimensions(client: Client) -> None:
    assert client.predict("empty", {"x": X})["y"].shape == (0, 3, 4)


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_zero_rows_keep_their_inner_dimensions_over_grpc(client: Client, server: ModelServer) -> None:
    server.run = lambda _, arrays: {"y": arrays["x"]}
    assert client.predict("empty", {"x": np.zeros((0, 5), np.float32)})["y"].shape == (0, 5)


@pytest.mark.parametrize("protocol", ["rest"], indirect=True)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 0)])
def test_shape_that_json_loses_is_refused_for_rest(client: Client, server: ModelServer, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=rf"Input x has shape {re.escape(str(list(shape)))}.*Use gRPC"):
        client.predict("empty", {"x": np.zeros(shape, np.float32)})
    assert server.served == []


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_shape_that_json_keeps_reaches_the_model(client: Client, server: ModelServer, shape: tuple[int, ...]) -> None:
    server.signatures["mirror"] = ({"x": (FLOAT, [-1] * len(shape))}, {"x": (FLOAT, [-1] * len(shape))})
    assert client.predict("mirror", {"x": np.zeros(shape, np.float32)})["x"].shape == shape


def test_metadata_names_dtypes_and_shapes(client: Client) -> None:
    metadata = client.metadata("pair")
    assert (metadata.model, metadata.version) == ("pair", 7)
    signature = metadata.signature()
    assert str(signature.inputs["a"]) == "a: int64[]"
    assert str(signature.inputs["b"]) == "b: string[?]"
    with pytest.raises(InvalidArgument, match=r'no signature "other"\. Its signatures are \[\'serving_default\'\]'):
        metadata.signature("other")


def test_metadata_has_labels_on_request(client: Client, server: ModelServer) -> None:
    server.labels = ["cat", "größer"]
    assert client.metadata("affine", with_labels=True).labels == ("cat", "größer")
    assert client.metadata("affine").labels == ()
    server.labels = []
    assert client.metadata("affine", with_labels=True).labels == ()


def test_status_lists_versions_with_their_errors(client: Client) -> None:
    assert client.status("affine") == (
        VersionStatus(7, State.AVAILABLE),
        VersionStatus(3, State.END, Code.INTERNAL, "weights are corrupt"),
    )


def test_readiness_is_the_servers_and_the_models(client: Client, server: ModelServer) -> None:
    assert client.is_ready()
    assert client.is_ready("affine")
    server.ready = False
    assert not client.is_ready()
    assert not client.is_ready("affine")


def test_the_reason_is_empty_for_a_ready_server(client: Client, server: ModelServer) -> None:
    assert (client.why_not_ready(), client.why_not_ready("affine")) == ("", "")
    server.ready = False
    assert client.why_not_ready()
    assert client.why_not_ready("affine") == "version 7 is LOADING; version 3 is END (weights are corrupt)"


def test_server_that_is_not_there_is_not_ready(kind: str, protocol: str) -> None:
    with serving(ModelServer(), protocol) as address:
        pass  # the server stops at once
    with make_client(kind, address) as client:
        assert not client.is_ready()
        assert client.why_not_ready() == "Cannot connect: Connection refused"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.INVALID_ARGUMENT, InvalidArgument),
        (Code.NOT_FOUND, NotFound),
        (Code.RESOURCE_EXHAUSTED, ResourceExhausted),
    ],
)
def test_failure_is_a_typed_error_with_the_servers_message_and_is_not_retried(
    client: Client, server: ModelServer, code: Code, error: type[TpuserveError]
) -> None:
    server.failures.append(Failure(code, "what the server said"))
    with pytest.raises(error, match="what the server said") as caught:
        client.metadata("affine")
    assert caught.value.code == code
    assert len(server.served) == 1


def test_unavailable_is_retried_with_growing_pauses(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE)] * 3)
    assert timed_client.metadata("affine").version == 7
    assert clock.pauses_s == pytest.approx([0.05, 0.1, 0.2])


def test_last_attempts_error_is_raised(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE, f"attempt {n}") for n in (1, 2, 3, 4)])
    with pytest.raises(Unavailable, match="attempt 4"):
        timed_client.metadata("affine")
    assert len(clock.pauses_s) == 3


def test_no_pause_outlasts_the_deadline(kind: str, address: str, server: ModelServer, clock: Clock) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE, f"attempt {n}") for n in (1, 2, 3, 4)])
    # The pauses advance only the fake clock, and by so much that real time never decides whether an attempt is late.
    retry = Retry(initial_backoff_s=100.0, max_backoff_s=1000.0)
    with (
        make_client(kind, address, clock, jitter=lambda: 0.5, retry=retry) as client,
        pytest.raises(Unavailable, match="attempt 2"),
    ):
        client.metadata("affine", timeout_s=120.0)
    assert clock.pauses_s == pytest.approx([50.0])


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED])
def test_retry_after_is_honoured(
    timed_client: Client, server: ModelServer, clock: Clock, protocol: str, code: Code
) -> None:
    server.failures.append(Failure(code, headers=RETRY_AFTER_20_S[protocol]))
    timed_client.metadata("affine")
    assert clock.pauses_s == [20.0]


def test_a_pause_that_outlasts_the_deadline_is_told(timed_client: Client, server: ModelServer, protocol: str) -> None:
    server.failures.append(Failure(Code.RESOURCE_EXHAUSTED, "too late", headers=RETRY_AFTER_20_S[protocol]))
    with pytest.raises(ResourceExhausted, match="too late") as raised:
        timed_client.predict("affine", {"x": X}, timeout_s=15.0)
    assert raised.value.retry_after_s == 20.0
    assert len(server.served) == 1


@pytest.mark.parametrize(
    "headers", [{}, *({"grpc-retry-pushback-ms": value} for value in ("-1", "soon", "9" * 20, "9" * 5000))]
)
@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_a_pushback_that_names_no_time_is_none(client: Client, server: ModelServer, headers: dict[str, str]) -> None:
    server.failures.append(Failure(Code.RESOURCE_EXHAUSTED, headers=headers))
    with pytest.raises(ResourceExhausted) as raised:
        client.predict("affine", {"x": X})
    assert raised.value.retry_after_s is None


@pytest.mark.parametrize("priority", ["high", "low", None])
def test_priority_reaches_the_server(client: Client, server: ModelServer, priority: Any) -> None:  # noqa: ANN401 - a Literal
    client.predict("affine", {"x": X}, priority=priority)
    assert [served.priority for served in server.served if served.method == "Predict"] == [priority]


@pytest.mark.parametrize("priority", ["urgent", "", 1, "low\r\nx: y"])
def test_priority_that_is_none_is_refused(client: Client, server: ModelServer, priority: Any) -> None:  # noqa: ANN401 - as above
    with pytest.raises(InvalidArgument, match="The priority must be 'high' or 'low', not"):
        client.predict("affine", {"x": X}, priority=priority)
    assert server.served == []


def test_no_connection_is_unavailable_and_retried(kind: str, protocol: str, clock: Clock) -> None:
    with serving(ModelServer(), protocol) as address:
        pass
    with make_client(kind, address, clock) as client, pytest.raises(Unavailable):
        client.status("affine")
    assert len(clock.pauses_s) == 3


def test_slow_answer_is_deadline_exceeded(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X})
    server.gate.clear()
    try:
        with pytest.raises(DeadlineExceeded):
            client.predict("affine", {"x": X}, timeout_s=0.2)
    finally:
        server.gate.set()


def test_deadline_reaches_the_server(address: str, kind: str, server: ModelServer) -> None:
    with make_client(kind, address, timeout_s=8.0) as client:
        client.predict("affine", {"x": X})
        client.predict("affine", {"x": X}, timeout_s=4.0)
    first, second = (served.time_left_s for served in server.served if served.method == "Predict")
    assert first is not None
    assert second is not None
    assert 0.0 < second < 4.5 < first < 8.5  # the clocks of client and server agree to within milliseconds


def test_waiting_ends_when_the_server_is_ready(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE)] * 6)  # more failures than the attempts of one call
    timed_client.wait_until_ready(60.0)
    assert len(clock.pauses_s) == 6
    assert max(clock.pauses_s) <= 1.0


def test_model_that_is_not_known_yet_is_waited_for(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    server.failures.append(Failure(Code.NOT_FOUND, "Could not find any versions of model affine"))
    timed_client.wait_until_ready(60.0, "affine")
    assert len(clock.pauses_s) == 1


def test_server_without_a_health_check_is_not_waited_for(client: Client, server: ModelServer) -> None:
    server.failures.append(Failure(Code.NOT_FOUND, "Not found: /readyz"))
    with pytest.raises(NotFound, match="readyz"):
        client.wait_until_ready(60.0)


def test_probe_without_an_answer_is_not_ready(client: Client, server: ModelServer) -> None:
    server.gate.clear()
    try:
        assert not client.is_ready(timeout_s=0.2)
    finally:
        server.gate.set()


def test_deadline_that_passed_sends_nothing(timed_client: Client, server: ModelServer) -> None:
    with pytest.raises(DeadlineExceeded, match="before the request was sent"):
        timed_client.status("affine", timeout_s=0.0)
    assert server.served == []


def test_signature_that_is_gone_is_forgotten(client: Client, server: ModelServer) -> None:
    """Rename a model's input: the first call fails and the next uses the new signature."""
    server.version_header = False
    client.predict("single", [[[1, 2], [3, 4]]])
    _, outputs = server.signatures["single"]
    server.signatures["single"] = ({"picture": (FLOAT, [-1, 2, 2])}, outputs)
    server.run = lambda _, arrays: {"sum": arrays["picture"].sum(axis=(1, 2))}
    server.failures.append(Failure(Code.INVALID_ARGUMENT, "Missing but required: picture"))
    with pytest.raises(InvalidArgument, match="picture"):
        client.predict("single", [[[1, 2], [3, 4]]])
    assert client.predict("single", [[[1, 2], [3, 4]]])["sum"].tolist() == [10.0]


def test_waiting_in_vain_ends_with_the_last_reason(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    server.ready = False
    with pytest.raises(DeadlineExceeded, match=r"Model affine was not ready within 3 s: version 7 is LOADING"):
        timed_client.wait_until_ready(3.0, "affine")
    assert sum(clock.pauses_s) == pytest.approx(3.0)


@pytest.mark.parametrize(("timeout_s", "reason"), [(3.0, "version 7 is LOADING"), (30.0, "no response")])
def test_a_probe_cut_short_by_the_deadline_does_not_hide_the_reason(
    timed_client: Client, server: ModelServer, monkeypatch: pytest.MonkeyPatch, timeout_s: float, reason: str
) -> None:
    server.ready = False
    begin = server.begin

    def answer_once(served: Served) -> Failure | None:
        return begin(served) or (Failure(Code.DEADLINE_EXCEEDED) if len(server.served) > 1 else None)

    monkeypatch.setattr(server, "begin", answer_once)
    with pytest.raises(DeadlineExceeded, match=f"was not ready within .* s: {reason}"):
        timed_client.wait_until_ready(timeout_s, "affine")


@pytest.mark.parametrize("version_header", [True, False])
def test_new_version_with_other_outputs_is_read_right(
    client: Client, server: ModelServer, version_header: bool
) -> None:
    server.version_header = version_header
    client.predict("affine", {"x": X})
    server.version = 8
    inputs, outputs = server.signatures["affine"]
    server.signatures["affine"] = (inputs, outputs | inputs)
    server.run = lambda model, arrays: run_model(model, arrays) | arrays
    prediction = client.predict("affine", {"x": X})
    assert set(prediction) == {"x", "y", "best"}
    np.testing.assert_array_equal(prediction["x"], X)


def test_closed_client_refuses_every_call(kind: str, address: str) -> None:
    with make_client(kind, address) as client:
        client.metadata("affine")
        client.close()
        with pytest.raises(FailedPrecondition):
            client.metadata("affine")  # a method that the client called before
        with pytest.raises(FailedPrecondition):
            client.is_ready()


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1, "5", 1.5])
def test_version_that_is_none_is_refused(client: Client, server: ModelServer, version: int) -> None:
    with pytest.raises(InvalidArgument, match="is not a valid version"):
        client.predict("affine", {"x": X}, version=version)
    assert server.served == []


def test_largest_version_reaches_the_server(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X}, version=2**63 - 1)
    assert server.served[0].version == 2**63 - 1


@pytest.mark.parametrize("name", [1, b"x", None])
def test_input_name_that_is_no_string_is_refused(client: Client, server: ModelServer, name: str) -> None:
    with pytest.raises(InvalidArgument, match="must be a string"):
        client.predict("affine", {name: X})
    assert server.served == []


def test_model_name_and_label_that_are_no_strings_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="must be a string"):
        client.status(5)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidArgument, match="must be a string"):
        client.metadata("affine", label=5)  # type: ignore[arg-type]
