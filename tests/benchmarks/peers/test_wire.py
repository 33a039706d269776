import json

import numpy as np
import pytest

from benchmarks.harness import mlp_model
from benchmarks.peers.servers import SUBJECTS
from benchmarks.peers.wire import (
    INFER_BINARY,
    INFER_GRPC,
    INFER_REST,
    PREDICT_GRPC,
    PREDICT_REST,
    ROW_REST,
    ROWS_REST,
    WIRES,
    Wire,
    bad_body,
    large_body,
)
from tpuserve_client.exchange import Reply

HTTP = [PREDICT_REST, INFER_REST, ROW_REST, ROWS_REST]
# An Open Inference Protocol response with one row, [1.0, -2.0], by field number.
# The fields are outputs 5 (name 1, datatype 2, shape 3, contents 5 with fp32_contents 6) and raw_output_contents 6.
TYPED_ANSWER = bytes.fromhex("2a19 0a0179 120446503332 1a020102 2a0a 3208 0000803f 000000c0".replace(" ", ""))
RAW_ANSWER = bytes.fromhex("2a0d 0a0179 120446503332 1a020102 3208 0000803f 000000c0".replace(" ", ""))


def numbers(document: object) -> list[float]:
    """Return every float in a JSON document, in order."""
    if isinstance(document, dict):
        return [value for part in document.values() for value in numbers(part)]
    if isinstance(document, list):
        return [value for part in document for value in numbers(part)]
    return [document] if isinstance(document, float) else []


@pytest.mark.parametrize("wire", HTTP, ids=lambda wire: wire.path + str(HTTP.index(wire)))
def test_http_requests_carry_the_row(wire: Wire) -> None:
    x = mlp_model.example()
    assert np.allclose(numbers(json.loads(wire.encode(x))), x[0], atol=1e-6)


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        (PREDICT_REST, b'{"predictions": [[1.0, -2.0]]}'),
        (INFER_REST, b'{"outputs": [{"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.0, -2.0]}]}'),
        (ROW_REST, b'{"y": [1.0, -2.0]}'),
        (ROWS_REST, b"[[1.0, -2.0]]"),
        (INFER_GRPC, TYPED_ANSWER),
        (INFER_GRPC, RAW_ANSWER),
    ],
)
def test_answers_become_rows(wire: Wire, answer: bytes) -> None:
    assert wire.decode(Reply(answer)).tolist() == [[1.0, -2.0]]


def test_binary_tensors_follow_the_header() -> None:
    x = mlp_model.example()
    body, length = INFER_BINARY.encode(x), int(INFER_BINARY.headers["inference-header-content-length"])
    assert body[length:] == x.tobytes()
    # A check sends other rows with the same headers.
    assert len(INFER_BINARY.encode(mlp_model.example(rows=1) * 2)) == len(body)
    text = b'{"outputs": [{"name": "y", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}'
    reply = Reply(text + RAW_ANSWER[-8:], {"inference-header-content-length": str(len(text))})
    assert INFER_BINARY.decode(reply).tolist() == [[1.0, -2.0]]


def test_inference_request_has_the_fields_of_the_protocol() -> None:
    x = mlp_model.example(rows=2)
    message = INFER_GRPC.encode(x)
    tensor = b"\x0a\x01x" + b"\x12\x04FP32" + b"\x1a\x02\x02\x40"
    assert message.startswith(b"\x0a\x03mlp" + b"\x2a" + bytes([len(tensor)]) + tensor + b"\x3a\x80\x04")
    assert message.endswith(x.tobytes())


def test_predict_request_is_the_one_of_the_client() -> None:
    assert b"mlp" in PREDICT_GRPC.encode(mlp_model.example())


@pytest.mark.parametrize("wire", HTTP, ids=lambda wire: wire.path + str(HTTP.index(wire)))
def test_bad_body_is_json_of_a_row_that_is_a_number_short(wire: Wire) -> None:
    assert len(numbers(json.loads(bad_body(wire)))) == mlp_model.FEATURES - 1


@pytest.mark.parametrize("wire", HTTP, ids=lambda wire: wire.path + str(HTTP.index(wire)))
def test_large_body_is_json_and_as_large_as_requested(wire: Wire) -> None:
    body = large_body(wire, 100_000)
    assert 100_000 <= len(body) < 102_000
    row = numbers(json.loads(wire.encode(mlp_model.example())))
    assert numbers(json.loads(body))[-mlp_model.FEATURES :] == row


def test_every_server_has_http_wires_of_which_the_first_sends_json() -> None:
    for subject in SUBJECTS:
        first = next(wire for wire in subject.wires if wire.protocol == "rest")
        json.loads(first.encode(mlp_model.example()))
        assert len({wire.name for wire in subject.wires}) == len(subject.wires)


def test_tpuserve_answers_over_every_wire_of_a_comparison() -> None:
    ours = {wire.name for wire in SUBJECTS[0].wires}
    assert all((wire.against or wire.name) in ours for subject in SUBJECTS for wire in subject.wires)
    assert all(WIRES[wire.name] is wire for subject in SUBJECTS for wire in subject.wires)
