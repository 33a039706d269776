"""A model without a reachable server makes wrong lines."""

from types import SimpleNamespace

import numpy as np

from tests.strangers.line import Verdict
from tests.strangers.predicting import predict_all
from tests.strangers.stranger import Stranger
from tests.support.free_ports import free_ports


def test_a_server_that_is_gone_makes_every_line_wrong() -> None:
    (port,) = free_ports(1)
    server = SimpleNamespace(grpc_address=f"127.0.0.1:{port}", rest_address=f"http://127.0.0.1:{port}")
    exchange = ({"x": np.zeros((2, 1))}, {"y": np.zeros((2, 1))})
    answers = {"serving_default": [exchange]}
    gone = Stranger("gone", "", (), outside={"x": (2, 8)})
    lines = list(predict_all(gone, "SavedModel", "gone", answers, server))  # type: ignore[arg-type] # no process is needed
    assert [line.protocol for line in lines] == ["gRPC", "REST", "JSON"] * 2
    assert {line.verdict for line in lines} == {Verdict.WRONG}
    assert "Connection refused" in lines[2].reason
