from tpuserve_server.core.batching.deadline_check import DeadlineCheck, HostDelay
from tpuserve_server.core.batching.device_queue import DeviceQueue
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, TooLate
from tpuserve_server.core.terms.types import ServableId

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
