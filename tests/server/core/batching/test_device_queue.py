"""Tests for the record of a device's batches, and for the predictions that read it."""

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, TooLate
from tpuserve_server.core.terms.types import ServableId


def take(queue: DeviceQueue, now_s: float, run_s: float, thread: int = 0, ready_s: float | None = None) -> None:
    queue.take(thread, [], now_s if ready_s is None else ready_s, now_s, run_s)


def is_idle(queue: DeviceQueue) -> bool:
    return queue.is_idle


def test_an_idle_device_starts_at_once() -> None:
    queue = DeviceQueue(1)
    assert is_idle(queue)
    assert queue.start_s(5.0, 0.0) == 5.0


def test_a_batch_starts_when_what_runs_has_ended_and_what_waits_before_it_has_run() -> None:
    queue = DeviceQueue(1)
    take(queue, 10.0, 4.0)
    assert not is_idle(queue)
    assert queue.start_s(11.0, 0.0) == 14.0
    assert queue.start_s(11.0, 5.0) == 19.0
    # The run exceeds its estimate, so the remaining time is unknown.
    assert queue.start_s(15.0, 2.0) == 17.0
    queue.end(0, 14.0)
    assert is_idle(queue)
    assert queue.start_s(15.5, 0.0) == 15.5


def test_batches_in_flight_follow_each_other() -> None:
    queue = DeviceQueue(1)
    take(queue, 10.0, 4.0)
    take(queue, 11.0, 4.0)
    assert queue.start_s(11.0, 0.0) == 18.0


@pytest.mark.parametrize("ended_s", [13.0, 14.0, 16.0])
def test_an_end_puts_the_next_batch_right(ended_s: float) -> None:
    queue = DeviceQueue(1)
    take(queue, 10.0, 4.0)
    take(queue, 11.0, 4.0)
    queue.end(0, ended_s)
    # A twentieth of a delay of the begin counts for the next.
    assert queue.start_s(ended_s, 0.0) == pytest.approx(ended_s + 4.0, abs=0.11)


def test_errors_do_not_add_up_while_the_device_is_never_idle() -> None:
    queue = DeviceQueue(1)
    take(queue, 0.0, 1.0)
    for count in range(1, 1000):
        take(queue, count - 0.5, 1.0)
        # Runs take as long as expected on average, and half of them 30 % longer.
        queue.end(0, count + 0.3 * (count % 2))
        assert queue.start_s(count + 0.5, 0.0) == pytest.approx(count + 1.15, abs=0.4)


def test_several_threads_share_the_work_that_waits() -> None:
    queue = DeviceQueue(2)
    take(queue, 10.0, 4.0, thread=0)
    assert is_idle(queue)
    assert queue.start_s(10.0, 0.0) == 10.0
    assert queue.start_s(10.0, 3.0) == 13.0
    assert queue.start_s(10.0, 6.0) == 15.0
    take(queue, 10.0, 6.0, thread=1)
    assert not is_idle(queue)
    assert queue.start_s(10.0, 1.0) == 15.0
    assert queue.start_s(10.0, 4.0) == 17.0


def test_a_pause_of_everything_is_not_feared_for_long() -> None:
    queue = DeviceQueue(1)
    take(queue, 100.0, 0.1, ready_s=0.0)
    queue.end(0, 100.1)
    assert queue.start_s(200.0, 0.0) < 200.01
    assert queue.spread_s < 0.01


def test_starts_that_are_regularly_late_are_expected_to_be() -> None:
    queue = DeviceQueue(1)
    for turn in range(200):
        take(queue, turn + 0.5, 0.1, ready_s=turn)
        queue.end(0, turn + 0.6)
    assert queue.start_s(300.0, 0.0) == pytest.approx(300.5, abs=0.01)
    assert queue.spread_s == pytest.approx(0.0, abs=0.02)


def test_what_was_not_begun_keeps_nobody_waiting() -> None:
    queue = DeviceQueue(1)
    take(queue, 10.0, 4.0)
    take(queue, 11.0, 4.0)
    queue.drop(0)
    assert queue.start_s(11.0, 0.0) == 14.0
    queue.end(0, 14.0)
    take(queue, 20.0, 4.0)
    queue.drop(0)
    assert queue.start_s(20.0, 0.0) == 20.0


def test_a_batch_hangs_from_its_begin_and_not_from_its_place_behind_another() -> None:
    queue = DeviceQueue(2)
    take(queue, 10.0, 1.0)
    take(queue, 10.0, 1.0)
    assert queue.next_hung_s(12.0, 5.0) == 15.0
    assert queue.mark_hung(14.0, 5.0) == ([], [])
    queue.end(0, 14.0)
    assert queue.next_hung_s(14.0, 5.0) == 19.0
    [hung], behind = queue.mark_hung(19.0, 5.0)
    assert (hung.is_hung, behind) == (True, [])
    assert (queue.hung_threads(), queue.hung_since_s()) == ([0], 14.0)
    assert queue.mark_hung(20.0, 5.0) == ([], [])
    assert queue.end(0, 21.0) is hung
    assert (queue.hung_threads(), queue.hung_since_s()) == ([], None)


def test_a_part_that_runs_again_hangs_from_its_own_begin() -> None:
    queue = DeviceQueue(1)
    take(queue, 10.0, 1.0)
    queue.run_again(0, 13.0)
    assert queue.mark_hung(15.0, 5.0) == ([], [])


NOW_S = 100.0


def check() -> DeadlineCheck:
    return DeadlineCheck(ServableId("m", 1), DeviceQueue(1), HostDelay())


def test_a_refusal_has_the_times_and_a_hint() -> None:
    error = check().refusal(Deadline(NOW_S + 0.5), NOW_S, NOW_S + 0.75)
    assert "would finish this request in 750.0 ms" in error.message
    assert "deadline in 500.0 ms" in error.message
    assert error.retry_after_s == 0.25


def test_a_waiting_request_fails_with_the_deadline_only_once_it_has_passed() -> None:
    forecast = check()
    assert isinstance(forecast.hopeless_error(Deadline(NOW_S + 1), NOW_S), TooLate)
    assert isinstance(forecast.hopeless_error(Deadline(NOW_S), NOW_S), DeadlineExceeded)


def test_the_delay_of_the_host_covers_its_variation() -> None:
    host = HostDelay()
    assert host.seconds == 0.0
    for _ in range(200):
        host.sent(FakeClock(0.010), 0.0)
    assert 0.010 <= host.seconds < 0.011
    host.sent(FakeClock(0.050), 0.0)
    assert host.seconds > 0.050


def test_a_pause_of_the_host_is_forgotten_after_a_few_batches() -> None:
    host = HostDelay()
    host.sent(FakeClock(5.0), 0.0)
    for _ in range(40):
        host.sent(FakeClock(0.001), 0.0)
    assert host.seconds < 0.1
