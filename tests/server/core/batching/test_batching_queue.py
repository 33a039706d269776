"""Tests for TensorFlow Serving's queues, after shared_batch_scheduler_test.cc: the batches, their times and limits."""

import asyncio
import math
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, DOUBLE_WIDE
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.parameters import BatchingOptions, PaddingPolicy
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.task import Outcome, QueueDepth, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId, Signature

NEVER = Deadline.never()


class Waiting:
    """A queue, and a clock that a test sets."""

    def __init__(
        self,
        options: BatchingOptions | None,
        *,
        max_enqueued_batches: int = 4,
        low_priority_max_enqueued_batches: int | None = None,
        signature: Signature = DOUBLE,
    ) -> None:
        self.costs = CostModel()
        self.queue = BatchQueue(
            {DOUBLE.name: signature},
            {DOUBLE.name: options} if options else {},
            max_enqueued_batches,
            self.costs,
            DeadlineCheck(ServableId("m", 1), DeviceQueue(1), HostDelay()),
            low_priority_max_enqueued_batches=low_priority_max_enqueued_batches,
        )
        self.now_s = 100.0
        self.loop = asyncio.new_event_loop()
        self.changes: list[bool] = []

    def task(self, rows: int, *, width: int = 2, shareable: bool = True, priority: Priority = Priority.HIGH) -> Task:
        future: asyncio.Future[Outcome] = self.loop.create_future()
        inputs = {"x": np.zeros((rows, width), np.float32)}
        return Task(DOUBLE.name, ("y",), inputs, rows, NEVER, future, shareable, self.now_s, priority)

    def add(self, rows: int, *, width: int = 2, shareable: bool = True, priority: Priority = Priority.HIGH) -> Task:
        task = self.task(rows, width=width, shareable=shareable, priority=priority)
        self.changes.append(self.queue.add(task))
        return task

    def take(self) -> list[int]:
        """Return the rows of the tasks in the batch that is ready."""
        return [task.rows for task in self.queue.take(self.now_s)]


@pytest.fixture
def waiting(request: pytest.FixtureRequest) -> Iterator[Waiting]:
    made = Waiting(**request.param) if isinstance(request.param, dict) else Waiting(request.param)
    yield made
    made.loop.close()


@pytest.mark.parametrize("waiting", [BatchingOptions(4)], indirect=True)
def test_without_a_timeout_whatever_waits_is_ready(waiting: Waiting) -> None:
    assert waiting.queue.next_s() == math.inf
    assert waiting.take() == []
    waiting.add(1)
    assert waiting.queue.next_s() == waiting.now_s
    waiting.add(2)
    assert waiting.take() == [1, 2]
    assert not waiting.queue


@pytest.mark.parametrize("waiting", [BatchingOptions(4)], indirect=True)
def test_waiting_requests_of_both_priorities_are_counted(waiting: Waiting) -> None:
    assert waiting.queue.queued() == {}
    waiting.add(3)
    waiting.add(2)
    waiting.add(1, priority=Priority.LOW)
    assert waiting.queue.queued() == {DOUBLE.name: QueueDepth(3, 6)}
    waiting.take()
    assert waiting.queue.queued()[DOUBLE.name].requests < 3


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_a_batch_that_is_not_full_waits_for_its_oldest_task(waiting: Waiting) -> None:
    waiting.add(1)
    waiting.now_s += 4
    waiting.add(1)
    assert waiting.take() == []
    assert waiting.queue.next_s() == 110.0
    waiting.now_s = 109.999
    assert waiting.take() == []
    waiting.now_s = 110.0
    assert waiting.take() == [1, 1]
    # A thread must check when a wait begins, but not when a known wait continues.
    assert waiting.changes == [True, False]


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_a_full_batch_leaves_at_once(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.add(1)
    assert waiting.changes == [True, True]
    assert waiting.take() == [3, 1]


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_a_task_that_does_not_fit_closes_the_batch_which_then_leaves_at_once(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.now_s += 1
    waiting.add(2)
    assert waiting.take() == [3]
    assert waiting.take() == []
    assert waiting.queue.next_s() == 111.0


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_what_runs_alone_waits_for_nobody(waiting: Waiting) -> None:
    waiting.add(1, shareable=False)
    waiting.add(1, shareable=False)
    assert waiting.take() == [1]
    assert waiting.take() == [1]


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_a_queue_in_a_hurry_lets_nothing_wait(waiting: Waiting) -> None:
    waiting.add(1)
    waiting.queue.hurry()
    assert waiting.take() == [1]


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=10)], indirect=True)
def test_when_the_oldest_leaves_its_batch_waits_for_the_next_oldest(waiting: Waiting) -> None:
    oldest = waiting.add(1)
    waiting.now_s += 4
    waiting.add(1)
    assert waiting.queue.discard(oldest)
    assert not waiting.queue.discard(oldest)
    assert waiting.queue.next_s() == 114.0


@pytest.mark.parametrize("waiting", [{"options": BatchingOptions(4), "max_enqueued_batches": 2}], indirect=True)
def test_batches_are_counted_as_they_form_not_rows(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.add(3)
    waiting.add(1)
    with pytest.raises(Unavailable) as raised:
        waiting.add(1)
    assert raised.value.message == (
        "The batch scheduling queue to which this task was submitted is full; "
        "currently 2 batches enqueued and max_enqueued_batches is 2"
    )
    assert waiting.take() == [3]
    waiting.add(1)
    assert waiting.take() == [3, 1]
    assert waiting.take() == [1]


@pytest.mark.parametrize("waiting", [{"options": None, "max_enqueued_batches": 2}], indirect=True)
def test_without_batching_a_task_is_a_batch(waiting: Waiting) -> None:
    waiting.add(1, shareable=False)
    waiting.add(1, shareable=False)
    with pytest.raises(Unavailable, match="currently 2 batches enqueued"):
        waiting.add(1, shareable=False)


@pytest.mark.parametrize("waiting", [BatchingOptions(4)], indirect=True)
def test_the_places_of_what_was_discarded_go_to_the_next(waiting: Waiting) -> None:
    tasks = [waiting.add(2) for _ in range(6)]
    for task in (tasks[1], tasks[2], tasks[3]):
        assert waiting.queue.discard(task)
    assert waiting.take() == [2, 2]
    assert waiting.take() == [2]
    assert not waiting.queue


@pytest.mark.parametrize("waiting", [BatchingOptions(4)], indirect=True)
def test_a_task_larger_than_a_batch_is_refused(waiting: Waiting) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^Task size 5 is larger .* batch size 4\. Send .*enable_large"
    ) as caught:
        waiting.add(5)
    assert "at most 4 rows" in caught.value.message


SPLITS = BatchingOptions(10, max_execution_batch_size=4)


@pytest.mark.parametrize("waiting", [SPLITS], indirect=True)
def test_a_large_task_fills_the_open_batch_and_then_others(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.add(10)
    assert [waiting.take() for _ in range(5)] == [[3, 1], [4], [4], [1], []]


@pytest.mark.parametrize("waiting", [SPLITS], indirect=True)
def test_where_tasks_are_split_the_largest_is_what_a_request_may_have(waiting: Waiting) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^Task size 11 is larger .* batch size 10\. Send at most 10 rows in a request$"
    ):
        waiting.add(11)


@pytest.mark.parametrize("waiting", [SPLITS], indirect=True)
def test_a_small_task_that_does_not_fit_is_split_too(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.add(2)
    assert [waiting.take(), waiting.take()] == [[3, 1], [1]]


@pytest.mark.parametrize("waiting", [SPLITS], indirect=True)
def test_a_task_that_fits_is_not_split(waiting: Waiting) -> None:
    waiting.add(4)
    task = waiting.add(4)
    assert task.split_request is None
    assert [waiting.take(), waiting.take()] == [[4], [4]]


@pytest.mark.parametrize("waiting", [{"options": SPLITS, "max_enqueued_batches": 2}], indirect=True)
def test_a_task_is_split_only_if_all_of_it_has_room(waiting: Waiting) -> None:
    waiting.add(3)
    with pytest.raises(Unavailable) as raised:
        waiting.add(6)
    assert raised.value.message == (
        "The batch scheduling queue to which this task was submitted is full; task size is 6 but scheduling capacity "
        "is only 5 (num_enqueued_batches=1, max_enqueued_batches=2, open_batch_size=3, max_execution_batch_size=4)"
    )
    waiting.add(5)
    with pytest.raises(Unavailable, match=r"capacity is only 0 \(num_enqueued_batches=2"):
        waiting.add(1)
    assert [waiting.take(), waiting.take()] == [[3, 1], [4]]


@pytest.mark.parametrize(
    "waiting",
    [{"options": SPLITS, "max_enqueued_batches": 1, "signature": DOUBLE_WIDE}],
    indirect=True,
)
def test_other_shapes_take_places_of_the_same_queue(waiting: Waiting) -> None:
    waiting.add(4, width=2)
    with pytest.raises(Unavailable, match=r"capacity is only 0 \(num_enqueued_batches=2, max_enqueued_batches=1"):
        waiting.add(5, width=3)


@pytest.mark.parametrize("waiting", [SPLITS], indirect=True)
def test_a_split_task_is_discarded_as_a_whole(waiting: Waiting) -> None:
    waiting.add(3)
    task = waiting.add(10)
    assert waiting.take() == [3, 1]
    assert waiting.queue.discard(task)
    assert not waiting.queue.discard(task)
    assert not waiting.queue


PADS = BatchingOptions(8, pad_variable_length_inputs=True)


@pytest.mark.parametrize("waiting", [{"options": PADS, "signature": DOUBLE_WIDE}], indirect=True)
def test_rows_that_may_be_padded_share_a_batch(waiting: Waiting) -> None:
    waiting.add(1, width=2)
    waiting.add(2, width=5)
    # An empty row has no element to pad with.
    waiting.add(3, width=0)
    assert [waiting.take(), waiting.take()] == [[1, 2], [3]]


@pytest.mark.parametrize(
    "waiting",
    [
        {
            "options": BatchingOptions(10, max_execution_batch_size=4, pad_variable_length_inputs=True),
            "signature": DOUBLE_WIDE,
        }
    ],
    indirect=True,
)
def test_parts_of_a_task_are_never_padded_differently(waiting: Waiting) -> None:
    waiting.add(3, width=2)
    # This task fits a batch: it is not split and may be padded.
    assert waiting.add(2, width=5).split_request is None
    # This task does not fit: it is split and shares batches only with equal shapes.
    assert waiting.add(5, width=5).split_request is not None
    assert [waiting.take() for _ in range(5)] == [[3], [2], [4], [1], []]


@pytest.mark.parametrize("waiting", [{"options": BatchingOptions(8), "signature": DOUBLE_WIDE}], indirect=True)
def test_without_padding_each_shape_has_batches_of_its_own(waiting: Waiting) -> None:
    waiting.add(1, width=2)
    waiting.add(2, width=5)
    waiting.add(3, width=2)
    assert [waiting.take(), waiting.take()] == [[1, 3], [2]]


LOW = Priority.LOW
SIZES = BatchingOptions(8, (2, 4, 8))


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_high_priority_leaves_before_low_that_has_waited_longer(waiting: Waiting) -> None:
    waiting.add(1, priority=LOW)
    waiting.now_s += 1
    waiting.add(8)
    assert [waiting.take(), waiting.take()] == [[8], [1]]


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_low_priority_fills_padding_in_its_order(waiting: Waiting) -> None:
    for rows in (1, 2, 1):
        waiting.add(rows, priority=LOW)
    waiting.add(5)
    # Three rows of padding. The third task would fit better than the second, but the second is older.
    assert waiting.take() == [5, 1, 2]
    assert waiting.take() == [1]
    assert not waiting.queue


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_low_priority_that_does_not_fit_waits(waiting: Waiting) -> None:
    waiting.add(2, priority=LOW)
    waiting.add(1, priority=LOW)
    waiting.add(3)
    assert [waiting.take(), waiting.take()] == [[3], [2, 1]]


@pytest.mark.parametrize("waiting", [BatchingOptions(8)], indirect=True)
def test_where_nothing_is_padded_low_priority_makes_no_batch_larger(waiting: Waiting) -> None:
    waiting.add(1, priority=LOW)
    waiting.add(3)
    assert [waiting.take(), waiting.take()] == [[3], [1]]


@pytest.mark.parametrize("waiting", [{"options": SIZES, "signature": DOUBLE_WIDE}], indirect=True)
def test_low_priority_of_another_shape_fills_nothing(waiting: Waiting) -> None:
    waiting.add(1, width=3, priority=LOW)
    waiting.add(1, width=3, shareable=False, priority=LOW)
    waiting.add(3, width=2)
    waiting.add(1, width=2, shareable=False)
    assert [waiting.take() for _ in range(4)] == [[3], [1], [1], [1]]


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (8,), max_execution_batch_size=6)], indirect=True)
def test_low_priority_fills_no_more_than_a_batch_may_have(waiting: Waiting) -> None:
    waiting.add(4, priority=LOW)
    waiting.add(5)
    assert [waiting.take(), waiting.take()] == [[5, 1], [3]]


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (2, 4, 8), timeout_s=10)], indirect=True)
def test_low_priority_leaves_while_high_still_waits_for_company(waiting: Waiting) -> None:
    waiting.add(1, priority=LOW)
    waiting.now_s += 4
    waiting.add(1)
    assert waiting.queue.next_s() == 110.0
    waiting.now_s = 110.0
    assert waiting.take() == [1]
    assert waiting.queue.next_s() == 114.0
    waiting.queue.hurry()
    assert waiting.take() == [1]


@pytest.mark.parametrize(
    "waiting",
    [{"options": BatchingOptions(2), "max_enqueued_batches": 3, "low_priority_max_enqueued_batches": 1}],
    indirect=True,
)
def test_each_priority_has_places_of_its_own(waiting: Waiting) -> None:
    waiting.add(2, priority=LOW)
    with pytest.raises(Unavailable, match="currently 1 batches enqueued and max_enqueued_batches is 1"):
        waiting.add(2, priority=LOW)
    for _ in range(3):
        waiting.add(2)
    with pytest.raises(Unavailable, match="currently 3 batches enqueued and max_enqueued_batches is 3"):
        waiting.add(2)
    for _ in range(3):
        assert waiting.take() == [2]
    assert waiting.queue
    assert waiting.take() == [2]
    waiting.add(2, priority=LOW)


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_low_priority_is_discarded_from_its_own_backlog(waiting: Waiting) -> None:
    task = waiting.add(1, priority=LOW)
    assert waiting.queue.discard(task)
    assert not waiting.queue.discard(task)
    assert not waiting.queue


def learn(waiting: Waiting, costs: dict[int, float]) -> None:
    for rows, run_s in costs.items():
        waiting.costs.learn(DOUBLE.name, rows, run_s)


DEAR = {2: 1.0, 4: 1.1, 8: 8.0}
DOWN = PaddingPolicy.BATCH_DOWN


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_rows_that_would_be_dear_to_pad_wait_with_their_age_for_the_next_batch(waiting: Waiting) -> None:
    learn(waiting, DEAR)
    for _ in range(5):
        waiting.add(1)
        waiting.now_s += 1
    assert waiting.take() == [1] * 4
    assert waiting.queue.next_s() == 104.0
    waiting.add(2)
    assert waiting.take() == [1, 2]
    assert not waiting.queue


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_without_costs_rows_are_padded_up(waiting: Waiting) -> None:
    for _ in range(5):
        waiting.add(1)
    assert waiting.take() == [1] * 5


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (2, 4, 8), padding_policy=PaddingPolicy.PAD_UP)], indirect=True)
def test_a_policy_that_pads_up_asks_for_no_costs(waiting: Waiting) -> None:
    learn(waiting, DEAR)
    for _ in range(5):
        waiting.add(1)
    assert waiting.take() == [1] * 5


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (2, 4, 8), padding_policy=DOWN)], indirect=True)
def test_whole_requests_are_left_for_the_next_batch_where_they_end_at_a_size(waiting: Waiting) -> None:
    waiting.add(3)
    waiting.add(1)
    waiting.add(3)
    assert waiting.take() == [3, 1]
    waiting.add(4)
    # 3 and 4 do not end at 4, so a cut gains nothing.
    assert waiting.take() == [3, 4]


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (2, 4, 8), padding_policy=DOWN)], indirect=True)
def test_what_is_left_goes_before_batches_that_wait_behind_it(waiting: Waiting) -> None:
    for rows in (3, 1, 3, 8):
        waiting.add(rows)
        waiting.now_s += 1
    assert [waiting.take() for _ in range(3)] == [[3, 1], [3], [8]]


@pytest.mark.parametrize(
    "waiting", [BatchingOptions(16, (4, 8, 16), max_execution_batch_size=8, padding_policy=DOWN)], indirect=True
)
def test_where_requests_are_split_one_is_cut_to_fill_a_size(waiting: Waiting) -> None:
    waiting.add(3)
    task = waiting.add(3)
    assert waiting.take() == [3, 1]
    assert task.split_request is not None
    waiting.add(16)
    # The rest of the cut request is still first, and later requests fill its batch.
    assert [waiting.take() for _ in range(4)] == [[2, 6], [8], [2], []]


@pytest.mark.parametrize(
    "waiting", [BatchingOptions(16, (4, 8, 16), max_execution_batch_size=8, padding_policy=DOWN)], indirect=True
)
def test_what_is_left_of_a_cut_request_is_discarded_with_it(waiting: Waiting) -> None:
    waiting.add(3)
    task = waiting.add(3)
    waiting.take()
    assert waiting.queue.discard(task)
    assert task.split_request is not None
    assert task.split_request.failed
    assert not waiting.queue
    assert not waiting.queue.discard(task)


@pytest.mark.parametrize("waiting", [BatchingOptions(8, (2, 4, 8), timeout_s=10, padding_policy=DOWN)], indirect=True)
def test_with_a_timeout_only_the_open_batch_is_cut_down_and_the_rest_waits_its_own_time(waiting: Waiting) -> None:
    waiting.add(4)
    waiting.now_s += 4
    waiting.add(3)
    waiting.now_s += 1
    waiting.add(2)
    # The next batch closed this one.
    assert waiting.take() == [4, 3]
    waiting.add(1)
    waiting.now_s = 115.0
    assert waiting.take() == [2]
    assert waiting.queue.next_s() == 115.0
    assert waiting.take() == [1]


@pytest.mark.parametrize("waiting", [SIZES], indirect=True)
def test_low_priority_fills_the_size_that_was_chosen(waiting: Waiting) -> None:
    learn(waiting, DEAR)
    for _ in range(3):
        waiting.add(1, priority=LOW)
    for _ in range(7):
        waiting.add(1)
    assert waiting.take() == [1] * 4
    assert len(waiting.take()) == 4
    # Three of high priority and one of low. The other low-priority requests form another batch.
    assert waiting.take() == [1, 1]
    assert not waiting.queue


@pytest.mark.parametrize("waiting", [{"options": BatchingOptions(4), "signature": DOUBLE_WIDE}], indirect=True)
def test_ahead_of_time_too_who_has_waited_longest_goes_first(waiting: Waiting) -> None:
    waiting.add(1, width=3)
    assert waiting.queue.take(waiting.now_s, closed=True) == []
    for _ in range(2):
        waiting.now_s += 1
        waiting.add(4)
    ahead = [[task.rows for task in waiting.queue.take(waiting.now_s, closed=True)] for _ in range(4)]
    assert ahead == [[1], [4], [4], []]


@pytest.mark.parametrize(
    "waiting",
    [{"options": BatchingOptions(8, (4, 8), pad_variable_length_inputs=True), "signature": DOUBLE_WIDE}],
    indirect=True,
)
def test_low_priority_makes_no_rows_longer(waiting: Waiting) -> None:
    waiting.add(1, width=500, priority=Priority.LOW)
    waiting.add(3, width=2)
    assert waiting.take() == [3]
    assert waiting.take() == [1]
