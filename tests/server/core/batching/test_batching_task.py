import asyncio

import numpy as np

from tpuserve_server.core.batching.task import SplitRequest, Task, complete
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Tensors


def outputs(*rows: float) -> Tensors:
    return {"y": np.array(rows)}


def test_parts_that_come_in_any_order_are_joined_in_theirs() -> None:
    split_request = SplitRequest(5)
    assert split_request.add(4, 1, outputs(5)) is None
    assert split_request.add(0, 2, outputs(1, 2)) is None
    joined = split_request.add(2, 2, outputs(3, 4))
    assert isinstance(joined, dict)
    assert joined["y"].tolist() == [1, 2, 3, 4, 5]


def test_the_first_failure_is_the_requests_and_the_only_one() -> None:
    split_request = SplitRequest(4)
    error = InvalidArgument("bad row")
    assert split_request.add(0, 1, outputs(1)) is None
    assert split_request.add(1, 1, error) is error
    assert split_request.failed
    assert split_request.add(2, 1, Internal("also")) is None
    assert split_request.add(3, 1, outputs(3)) is None


def test_what_was_given_up_has_no_outcome() -> None:
    split_request = SplitRequest(2)
    assert split_request.add(0, 1, outputs(1)) is None
    split_request.give_up()
    assert split_request.failed
    assert split_request.add(1, 1, outputs(2)) is None


def test_parts_that_cannot_be_joined_are_a_failure() -> None:
    split_request = SplitRequest(2)
    split_request.add(0, 1, {"y": np.zeros((1, 2))})
    assert isinstance(split_request.add(1, 1, {"y": np.zeros((1, 3))}), FailedPrecondition)
    assert split_request.failed


def test_parts_that_memory_cannot_hold_together_are_a_failure() -> None:
    row = np.broadcast_to(np.zeros(1), (2**30, 2**20))  # 8 PiB that are never allocated
    split_request = SplitRequest(2)
    split_request.add(0, 1, {"y": row})
    assert isinstance(split_request.add(1, 1, {"y": row}), ResourceExhausted)
    assert split_request.failed


def test_a_part_that_is_split_again_keeps_its_place() -> None:
    loop = asyncio.new_event_loop()
    x = np.arange(6, dtype=np.float32)[:, None]
    task = Task("s", ("y",), {"x": x}, 6, Deadline.never(), loop.create_future(), True, 7.0, Priority.LOW)
    first, second = task.split([2, 4])
    third, fourth = second.split([1, 3])
    assert [(part.start, part.inputs["x"][:, 0].tolist()) for part in (first, third, fourth)] == [
        (0, [0, 1]),
        (2, [2]),
        (3, [3, 4, 5]),
    ]
    assert all((part.enqueued_s, part.priority) == (7.0, Priority.LOW) for part in (first, third, fourth))
    complete([(part, {"y": part.inputs["x"]}) for part in (fourth, first, third)])
    loop.call_soon(loop.stop)
    loop.run_forever()
    outcome = task.future.result()
    loop.close()
    assert isinstance(outcome, dict)
    assert outcome["y"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
