from tpuserve_server.core.batching.deadline_check import DeadlineCheck
from tpuserve_server.core.batching.host_delay import HostDelay
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import DeadlineExceeded, TooLate
from tpuserve_server.core.types import ServableId

NOW_S = 100.0


def check(devices: int = 1) -> DeadlineCheck:
    return DeadlineCheck(ServableId("m", 1), devices, HostDelay())


def test_a_request_runs_after_the_running_batch_and_the_waiting_work() -> None:
    forecast = check()
    forecast.started(7, NOW_S, 4.0)
    assert forecast.finish_s(NOW_S + 1, 10.0, 2.0) == NOW_S + 4 + 10 + 2


def test_batches_of_one_thread_run_one_after_the_other() -> None:
    forecast = check()
    forecast.started(7, NOW_S, 4.0)
    forecast.started(7, NOW_S + 1, 4.0)
    assert forecast.finish_s(NOW_S + 1, 0.0, 0.0) == NOW_S + 8


def test_a_batch_that_takes_longer_than_expected_ends_now() -> None:
    forecast = check()
    forecast.started(7, NOW_S, 4.0)
    assert forecast.finish_s(NOW_S + 9, 0.0, 0.0) == NOW_S + 9
    assert not forecast.is_idle


def test_a_thread_without_a_batch_is_idle() -> None:
    forecast = check()
    assert forecast.is_idle
    forecast.started(7, NOW_S, 4.0)
    forecast.ended(7)
    assert forecast.is_idle
    assert forecast.finish_s(NOW_S + 1, 0.0, 0.0) == NOW_S + 1


def test_two_devices_share_the_waiting_work() -> None:
    forecast = check(devices=2)
    forecast.started(7, NOW_S, 4.0)
    assert forecast.is_idle
    forecast.started(8, NOW_S, 6.0)
    assert forecast.finish_s(NOW_S, 10.0, 2.0) == NOW_S + 4 + 5 + 2


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
        host.record(0.010)
    assert 0.010 <= host.seconds < 0.011
    host.record(0.050)
    assert host.seconds > 0.050


def test_a_pause_of_the_host_is_forgotten_after_a_few_batches() -> None:
    host = HostDelay()
    host.record(5.0)
    for _ in range(40):
        host.record(0.001)
    assert host.seconds < 0.1
