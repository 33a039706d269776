from pathlib import Path

import pytest

from benchmarks.harness import mlp_model
from benchmarks.harness.load_tools import Load
from benchmarks.harness.measurement import WrongAnswer, check_size
from benchmarks.peers.measurement import write_body
from benchmarks.peers.wire import INFER_GRPC, ROW_REST


def load(data_bytes: int | None) -> Load:
    return Load(102, 2, 1.0, 1.0, 1.0, 0.5, data_bytes)


def test_answers_that_were_errors_under_a_200_are_noticed() -> None:
    check_size(load(100 * 45), 40)
    check_size(load(100 * 45 + 40), 40)  # the end of the run interrupted a request
    check_size(load(None), 40)
    with pytest.raises(WrongAnswer, match="100 responses have 4455 bytes, expected 4500"):
        check_size(load(99 * 45), 40)


def test_grpc_bodies_are_framed_and_http_bodies_are_not(tmp_path: Path) -> None:
    message = INFER_GRPC.encode(mlp_model.example())
    assert write_body(INFER_GRPC, tmp_path).read_bytes() == b"\0" + len(message).to_bytes(4, "big") + message
    assert write_body(ROW_REST, tmp_path).read_bytes() == ROW_REST.encode(mlp_model.example())
