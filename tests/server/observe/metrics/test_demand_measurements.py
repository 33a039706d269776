"""Tests for the ratios of demand: their window, models that share a device, and requests refused unread."""

from collections.abc import Mapping

import pytest

from tpuserve_server.core.batching.demand import DemandTotals
from tpuserve_server.core.batching.device_share import BusyTimes
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.demand_measurements import DemandMeasurements
from tpuserve_server.observe.metrics.series import ModelPlaces
from tpuserve_server.observe.metrics.server_measurements import ServerMeasurements

A, A2, B = ServableId("a", 1), ServableId("a", 2), ServableId("b", 1)


class Server(ServerMeasurements):
    """A server with the given totals."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[ServableId, DemandTotals] = {}
        self.unread = 0
        self.busy = BusyTimes(0.0, 0.0)
        self.starts = False

    def is_starting(self) -> bool:
        return self.starts

    def demand(self) -> Mapping[ServableId, DemandTotals]:
        return dict(self.totals)

    def refused_unread(self) -> int:
        return self.unread

    def busy_times(self) -> BusyTimes:
        return self.busy


class Measured:
    """Measurements of a server, with a sample each second."""

    def __init__(self) -> None:
        self.server = Server()
        self.demand = DemandMeasurements(self.server, ModelPlaces())
        self.now_s, self.loop_s = 100.0, 5.0
        self.demand.sample(self.now_s, self.loop_s)

    def pass_s(self, seconds: int, rates: Mapping[ServableId, float], loop: float = 0.0, overlap: float = 1.0) -> None:
        """Let requests that need 10 ms each arrive at these rates of demand."""
        for _ in range(seconds):
            self.now_s += 1.0
            self.loop_s += loop
            for id_, rate in rates.items():
                had = self.server.totals.get(id_, DemandTotals())
                self.server.totals[id_] = DemandTotals(had.high_s + rate, 0.0, had.requests + round(rate * 100), 0.01)
            any_s, models_s = self.server.busy
            self.server.busy = BusyTimes(any_s + 1.0, models_s + overlap)
            self.demand.sample(self.now_s, self.loop_s)


@pytest.fixture
def measured() -> Measured:
    return Measured()


def test_nothing_is_measured_before_the_first_second(measured: Measured) -> None:
    assert (measured.demand.ratio(), measured.demand.model_ratios(), measured.demand.loop_s()) == (0.0, {}, 5.0)


def test_the_ratio_is_that_of_the_last_thirty_seconds(measured: Measured) -> None:
    measured.pass_s(60, {A: 3.0})
    assert measured.demand.ratio() == pytest.approx(3.0)
    measured.pass_s(15, {A: 0.0})
    assert measured.demand.ratio() == pytest.approx(1.5)
    measured.pass_s(15, {A: 0.0})
    assert (measured.demand.ratio(), measured.demand.model_ratios()) == (0.0, {"a": 0.0})
    assert measured.demand.seconds.all() == {("a", Priority.HIGH): pytest.approx(180.0)}


def test_models_on_one_device_add_up(measured: Measured) -> None:
    measured.pass_s(30, {A: 0.5, B: 0.25})
    assert measured.demand.ratio() == pytest.approx(0.75)
    assert measured.demand.model_ratios() == {"a": pytest.approx(0.5), "b": pytest.approx(0.25)}


def test_runs_that_delay_each_other_do_not_count_twice(measured: Measured) -> None:
    # Both run all the time, at half the speed, and so seem to cost twice as much.
    measured.pass_s(30, {A: 1.0, B: 1.0}, overlap=2.0)
    assert measured.demand.ratio() == pytest.approx(1.0)


def test_a_busy_event_loop_limits_the_server(measured: Measured) -> None:
    measured.pass_s(30, {A: 0.25}, loop=0.9)
    assert measured.demand.ratio() == pytest.approx(0.9)
    assert measured.demand.model_ratios() == {"a": pytest.approx(0.25)}


def test_the_work_of_the_start_does_not_count(measured: Measured) -> None:
    measured.server.starts = True
    measured.pass_s(20, {}, loop=1.0)
    measured.server.starts = False
    assert measured.demand.ratio() == 0.0
    measured.pass_s(10, {A: 0.5}, loop=0.25)
    assert measured.demand.ratio() == pytest.approx(0.5)


def test_requests_count_while_another_model_has_no_files(measured: Measured) -> None:
    measured.server.starts = True
    measured.pass_s(40, {A: 0.5}, loop=1.0)
    assert measured.demand.ratio() == pytest.approx(0.5)
    assert measured.demand.model_ratios() == {"a": pytest.approx(0.5)}


def test_without_a_busy_time_of_the_loop_the_device_decides(measured: Measured) -> None:
    for now_s in (101.0, 102.0):
        measured.server.totals[A] = DemandTotals((now_s - 100) / 2, 0.0, 1, 0.01)
        measured.demand.sample(now_s, None)
    assert measured.demand.ratio() == pytest.approx(0.5)
    assert measured.demand.loop_s() is None


def test_requests_refused_unread_count_as_the_others_of_their_second(measured: Measured) -> None:
    measured.server.unread = 40
    # 100 requests for a, 300 for b.
    measured.pass_s(1, {A: 1.0, B: 3.0})
    assert measured.demand.seconds.all() == {
        ("a", Priority.HIGH): pytest.approx(1.1),
        ("b", Priority.HIGH): pytest.approx(3.3),
    }
    # None arrives but those: they count as all requests so far.
    measured.server.unread = 80
    measured.pass_s(1, {})
    assert measured.demand.seconds.all()["b", Priority.HIGH] == pytest.approx(3.6)


def test_totals_do_not_fall_when_versions_change(measured: Measured) -> None:
    measured.pass_s(10, {A: 1.0})
    del measured.server.totals[A]
    measured.pass_s(10, {A2: 0.5})
    # The same version again, with the counts of a new batcher.
    measured.server.totals[A] = DemandTotals(0.25, 0.5, 10, 0.01)
    measured.pass_s(1, {})
    assert measured.demand.seconds.all() == {
        ("a", Priority.HIGH): pytest.approx(15.25),
        ("a", Priority.LOW): pytest.approx(0.5),
    }
