"""Tests for the client's Open Inference Protocol against real servers, compared with TensorFlow Serving's protocol."""

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from tests.contract.conftest import FIRST, SECOND
from tests.contract.serving_client import ServingClient
from tests.support.client_commands import client_commands
from tpuserve_client import AsyncClient, Client, DeadlineExceeded, InvalidArgument, NotFound, State, VersionStatus

X = np.array([0, 2, 4], np.float32).reshape(3, 1)
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "float32": np.array([-1.5, np.inf], np.float32),
    "float64": np.array([-1.5, 1e300], np.float64),
    "float16": np.array([-1.5, 2], np.float16),
    "bfloat16": np.array([-1.5, 2], ml_dtypes.bfloat16),
    "int8": np.array([-128, 127], np.int8),
    "int16": np.array([-(2**15), 2**15 - 1], np.int16),
    "int32": np.array([-(2**31), 2**31 - 1], np.int32),
    "int64": np.array([-(2**63), 2**63 - 1], np.int64),
    "uint8": np.array([0, 255], np.uint8),
    "uint16": np.array([0, 2**16 - 1], np.uint16),
    "uint32": np.array([0, 2**32 - 1], np.uint32),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "bool": np.array([True, False]),
    "string": np.array([b"", b"\x00\xff", "größe".encode()], object),
}


@pytest.fixture(params=["oip+grpc", "oip+http"])
def address(request: pytest.FixtureRequest, serving: ServingClient) -> str:
    return f"oip+{serving.rest_url}" if request.param == "oip+http" else f"oip+grpc://{serving.grpc_address}"


@pytest.fixture
def client(address: str) -> Any:  # noqa: ANN401  an iterator of a Client
    with Client(address) as made:
        yield made


def test_predictions_are_those_of_the_other_protocol(client: Client, serving: ServingClient) -> None:
    with Client(serving.grpc_address) as other:
        for version in (None, FIRST, SECOND):
            ours, theirs = (one.predict("half", {"x": X}, version=version) for one in (client, other))
            assert ours["y"].tolist() == theirs["y"].tolist()
            assert (ours.model, ours.version, ours.signature_name) == ("half", version or SECOND, theirs.signature_name)


@pytest.mark.parametrize("name", ARRAYS)
def test_every_dtype_makes_the_round_trip(client: Client, name: str) -> None:
    for sent in (ARRAYS[name], ARRAYS[name][:0]):
        received = client.predict("kinds", {"x": sent}, signature_name=f"echo_{name}")["y"]
        assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
        np.testing.assert_array_equal(received, sent)


def test_outputs_without_dimensions_and_several_outputs_are_read(client: Client) -> None:
    assert client.predict("kinds", {"x": X[:, 0]}, signature_name="scalar")["total"].shape == ()
    inputs = {"a": X[:, 0], "b": X[:, 0]}
    assert set(client.predict("kinds", inputs, signature_name="two")) == {"sum", "difference"}
    chosen = client.predict("kinds", inputs, signature_name="two", output_filter=["difference"])
    assert {name: array.tolist() for name, array in chosen.items()} == {"difference": [0, 0, 0]}
    with pytest.raises(InvalidArgument, match="q"):
        client.predict("kinds", inputs, signature_name="two", output_filter=["q"])


def test_lists_and_large_inputs_use_the_metadata(client: Client, serving: ServingClient) -> None:
    with Client(serving.grpc_address) as other:
        ours, theirs = client.metadata("half"), other.metadata("half")
    assert ours.version == theirs.version == SECOND
    assert ours.signature().inputs == theirs.signature().inputs
    assert ours.signature().outputs == theirs.signature().outputs
    assert client.predict("half", [[2], [4]])["y"].tolist() == [[4.0], [5.0]]
    rows = np.arange(10, dtype=np.float32).reshape(10, 1)
    np.testing.assert_array_equal(client.predict("half", rows, max_batch_size=4)["y"], rows / 2 + 3)


def test_status_and_readiness(client: Client) -> None:
    expected = [VersionStatus(version, State.AVAILABLE) for version in (SECOND, FIRST)]
    assert list(client.status("half")) == expected
    assert list(client.status("half", version=FIRST)) == expected[1:]
    assert client.is_ready()
    assert client.is_ready("half", version=FIRST)
    assert not client.is_ready("half", version=9)
    assert not client.is_ready("nowhere")


def test_refusals_are_typed_errors_that_name_the_model_or_the_input(client: Client) -> None:
    for method in (client.status, client.metadata, lambda model: client.predict(model, {"x": X})):
        with pytest.raises(NotFound, match="nowhere"):
            method("nowhere")
    for inputs in ({"z": X}, {"x": X.astype(np.float64)}, {"x": X.reshape(3, 1, 1)}, {}):
        with pytest.raises(InvalidArgument, match="x"):
            client.predict("half", inputs)
    with pytest.raises(InvalidArgument, match="unknown_signature"):
        client.predict("half", {"x": X}, signature_name="unknown_signature")


def test_priority_and_deadline_are_honoured(client: Client) -> None:
    for priority in ("high", "low"):
        assert client.predict("half", {"x": X}, priority=priority)["y"].shape == (3, 1)
    with pytest.raises(DeadlineExceeded):
        client.predict("half", {"x": X}, timeout_s=1e-5)


def test_awaited_predictions_are_the_same(address: str) -> None:
    async def predicted() -> list[object]:
        async with AsyncClient(address) as client:
            answers = await asyncio.gather(*(client.predict("half", {"x": X + n}) for n in range(20)))
        return [answer["y"].tolist() for answer in answers]

    assert asyncio.run(predicted()) == [((X + n) / 2 + 3).tolist() for n in range(20)]


def test_large_tensors_arrive_unchanged(client: Client) -> None:
    sent = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    received = client.predict("kinds", {"x": sent}, signature_name="echo_float32")["y"]
    assert received.tobytes() == sent.tobytes()


def test_commands_take_the_address(address: str) -> None:
    shown = CliRunner().invoke(client_commands, ["status", "half", "--address", address])
    assert (shown.exit_code, shown.stdout) == (0, f"{SECOND}\tAVAILABLE\t\n{FIRST}\tAVAILABLE\t\n")
    predicted = CliRunner().invoke(client_commands, ["predict", "half", "--address", address, "-i", "-"], input="[[2]]")
    assert (predicted.exit_code, predicted.stdout) == (0, "y\tfloat32[1, 1]\t[[4.]]\n")
