"""Tests of the judgement: a sweep finds each kind of fault, and its table counts them."""

import json

import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2

from tests.zoo.catalogue.operation import Operation, operation
from tests.zoo.forms import Kind
from tests.zoo.protocols import Protocol, Request, read, write
from tests.zoo.sandbox import Outcome, Verdict, judged_code, judged_status
from tests.zoo.sweep import Line, Sweep, filled, sampled
from tests.zoo.table import ZooTable

DOUBLE = operation("double", lambda x: x + x, x="f N,2")


class Echo:
    """Answers TF gRPC requests with their inputs, and changes some outcomes."""

    def __init__(self, change: dict[tuple[int, ...], Outcome]) -> None:
        self._change = change

    def send(self, request: Request) -> Outcome:
        message = predict_pb2.PredictRequest.FromString(request.body)
        shape = tuple(dim.size for dim in message.inputs["x"].tensor_shape.dim)
        body = predict_pb2.PredictResponse(outputs=message.inputs).SerializeToString()
        return self._change.get(shape, Outcome(Verdict.ANSWERED, 1.0, 1.0, body=body))


def lines(change: dict[tuple[int, ...], Outcome], one: Operation = DOUBLE) -> dict[str, Line]:
    found = Sweep("plain", one, Echo(change), [Protocol.TF_GRPC], None).lines(1000)
    return {line.form: line for line in found}


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(Verdict.DIED, detail="SIGABRT"), "died SIGABRT"),
        (Outcome(Verdict.HUNG, 3000.0), "hung"),
        (Outcome(Verdict.REFUSED, 500.0), "slow: 500 ms"),
        (Outcome(Verdict.REFUSED, 1.0, 80.0), "memory: 80 MB"),
        (Outcome(Verdict.REFUSED, 1.0, 1.0, "no"), ""),
    ],
)
def test_fault_of_one_form_is_found(outcome: Outcome, fault: str) -> None:
    found = lines({(0, 2): outcome})
    assert found["x[0,2]"].fault == fault
    assert not any(line.fault for form, line in found.items() if form != "x[0,2]")


def test_valid_form_must_be_answered() -> None:
    assert lines({(2, 2): judged_code("INVALID_ARGUMENT", "no")})["x[2,2]"].fault.startswith(
        "a valid request is refused"
    )


def test_answer_that_differs_between_protocols_is_wrong() -> None:
    class Changing(Echo):
        def send(self, request: Request) -> Outcome:
            if request.is_rest:
                return judged_status(200, b'{"outputs": [[1, 2], [3, 4]]}', {})
            return super().send(request)

    sweep = Sweep("plain", DOUBLE, Changing({}), [Protocol.TF_GRPC, Protocol.TF_REST], None)
    faults = [line.fault for line in sweep.lines(1) if line.kind is Kind.VALID]
    assert faults == ["", "wrong: the answer differs from that over TF gRPC"]


@pytest.mark.parametrize("protocol", [one for one in Protocol if one is not Protocol.TF_GRPC])
def test_every_protocol_expresses_a_valid_form(protocol: Protocol) -> None:
    [form] = sampled(DOUBLE, 1)[Kind.VALID]
    inputs = filled(DOUBLE, form)
    assert inputs is not None
    request = write(protocol, "m", inputs)
    assert request is not None
    assert request.is_rest == ("REST" in protocol)


def test_outputs_of_binary_and_json_responses_are_read() -> None:
    header = json.dumps(
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}
    ).encode()
    raw = np.array([1, 2], np.float32).tobytes()
    headers = {"inference-header-content-length": str(len(header))}
    assert read(Protocol.OIP_REST_BINARY, header + raw, headers)["y"].tolist() == [1, 2]
    text = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [0, 2], "data": []}]}'
    assert read(Protocol.OIP_REST_JSON, text, {})["y"].shape == (0, 2)


def test_table_counts_new_faults_apart_from_known_ones() -> None:
    table = ZooTable()
    for model in ("double", "encode_png"):
        fault = "died SIGABRT"
        table.add(Line("plain", model, Kind.SMALL, "x[0]", Protocol.TF_GRPC, Verdict.DIED, 0.0, 0.0, fault))
    assert [line.model for line in table.faulty] == ["double"]
    total = json.loads(table.json())["rows"][-1]
    assert (total["died"], total["known"], total["faults"]) == ("2", "1", "1")
    assert "known: encode_png: EncodePng" in table.text()
    assert "double small x[0] over TF gRPC: died SIGABRT" in table.markdown()
