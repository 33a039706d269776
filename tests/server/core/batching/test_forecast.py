import pytest

from tpuserve_server.core.batching.forecast import DeviceForecast


def test_an_idle_device_starts_at_once() -> None:
    assert DeviceForecast(1).start_s(5.0, []) == 5.0


def test_a_batch_starts_when_what_runs_has_ended_and_what_is_before_it_has_run() -> None:
    forecast = DeviceForecast(1)
    forecast.started(1, 10.0, 10.0, 4.0)
    assert forecast.start_s(11.0, []) == 14.0
    assert forecast.start_s(11.0, [2.0, 3.0]) == 19.0
    # The run exceeds its estimate, so the remaining time is unknown.
    assert forecast.start_s(15.0, [2.0]) == 17.0
    forecast.finished(1)
    assert forecast.start_s(15.5, []) == 15.5


def test_batches_in_flight_follow_each_other() -> None:
    forecast = DeviceForecast(1)
    forecast.started(1, 10.0, 10.0, 4.0)
    forecast.started(1, 11.0, 10.0, 4.0)
    assert forecast.start_s(11.0, []) == 18.0
    forecast.finished(1)
    assert forecast.start_s(14.0, []) == 18.0


def test_several_threads_each_take_the_next_batch_that_waits() -> None:
    forecast = DeviceForecast(2)
    forecast.started(1, 10.0, 10.0, 4.0)
    assert forecast.start_s(10.0, []) == 10.0
    forecast.started(2, 10.0, 10.0, 6.0)
    assert forecast.start_s(10.0, [3.0, 1.0]) == 17.0


def test_a_pause_of_everything_is_not_feared_for_long() -> None:
    forecast = DeviceForecast(1)
    forecast.started(1, 100.0, 0.0, 0.1)
    assert forecast.start_s(200.0, []) < 200.01
    assert forecast.spread_s < 0.01


def test_starts_that_are_regularly_late_are_expected_to_be() -> None:
    forecast = DeviceForecast(1)
    for turn in range(200):
        forecast.started(1, turn + 0.5, turn, 0.1)
        forecast.finished(1)
    assert forecast.start_s(300.0, []) == pytest.approx(300.5, abs=0.01)
    assert forecast.spread_s == pytest.approx(0.0, abs=0.02)


def test_what_was_not_begun_keeps_nobody_waiting() -> None:
    forecast = DeviceForecast(1)
    forecast.started(1, 10.0, 10.0, 4.0)
    forecast.started(1, 11.0, 11.0, 4.0)
    forecast.dropped(1)
    assert forecast.start_s(11.0, []) == 14.0
    forecast.finished(1)
    forecast.started(1, 20.0, 20.0, 4.0)
    forecast.dropped(1)
    assert forecast.start_s(20.0, []) == 20.0
