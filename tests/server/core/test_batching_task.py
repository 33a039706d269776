import numpy as np

from tpuserve_server.core.batching_task import Whole
from tpuserve_server.core.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted
from tpuserve_server.core.types import Tensors


def outputs(*rows: float) -> Tensors:
    return {"y": np.array(rows)}


def test_parts_that_come_in_any_order_are_joined_in_theirs() -> None:
    whole = Whole(3)
    assert whole.add(2, outputs(5)) is None
    assert whole.add(0, outputs(1, 2)) is None
    joined = whole.add(1, outputs(3, 4))
    assert isinstance(joined, dict)
    assert joined["y"].tolist() == [1, 2, 3, 4, 5]


def test_the_first_failure_is_the_requests_and_the_only_one() -> None:
    whole = Whole(4)
    error = InvalidArgument("bad row")
    assert whole.add(0, outputs(1)) is None
    assert whole.add(1, error) is error
    assert whole.failed
    assert whole.add(2, Internal("also")) is None
    assert whole.add(3, outputs(3)) is None


def test_parts_that_cannot_be_joined_are_a_failure() -> None:
    whole = Whole(2)
    whole.add(0, {"y": np.zeros((1, 2))})
    assert isinstance(whole.add(1, {"y": np.zeros((1, 3))}), FailedPrecondition)
    assert whole.failed


def test_parts_that_memory_cannot_hold_together_are_a_failure() -> None:
    row = np.broadcast_to(np.zeros(1), (2**30, 2**20))  # 8 PiB that nobody has to have.
    whole = Whole(2)
    whole.add(0, {"y": row})
    assert isinstance(whole.add(1, {"y": row}), ResourceExhausted)
    assert whole.failed
