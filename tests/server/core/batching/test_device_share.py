"""Tests for turns on a device in one thread: time passes when a run ends, and no thread waits."""

import functools
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_device import FakeClock
from tpuserve_server.core.batching.device_share import BusyTimes, DeviceShare, Turn
from tpuserve_server.core.terms.types import ServableId


@dataclass(frozen=True, slots=True)
class Running:
    ends_s: float
    run_s: float
    model: str
    turn: Turn


class Play:
    """A device and its runs. Models that are `busy` always have another batch of `run_s[model]` ready."""

    def __init__(self, slots: int, run_s: dict[str, float], weights: dict[str, float] | None = None) -> None:
        self.device = DeviceShare(slots)
        self.run_s = run_s
        self.busy: set[str] = set()
        self.now_s = 0.0
        self.used_s: dict[str, float] = defaultdict(float)
        self.order: list[str] = []
        self.running: list[Running] = []
        self.waiting: dict[Turn, str] = {}
        for name in run_s:
            self.device.join(ServableId(name, 1), (weights or {}).get(name, 1.0))

    def ask(self, model: str, turn: Turn | None = None) -> Turn:
        """Report that a batch of the model is ready."""
        turn = turn or self.device.turn(ServableId(model, 1))
        if turn.take() or (not turn.line_up() and turn.take()):
            self._begin(model, turn)
        else:
            self.waiting[turn] = model
        return turn

    def work(self, *models: str) -> None:
        """Make these models busy from now on."""
        self.busy |= set(models)
        for model in models:
            self.ask(model)

    def step(self) -> None:
        """End the next run, and start the runs whose turn has come."""
        ended = min(self.running, key=lambda running: running.ends_s)
        self.running.remove(ended)
        self.now_s = ended.ends_s
        self.used_s[ended.model] += ended.run_s
        ended.turn.used_s += ended.run_s
        if ended.model in self.busy:
            self.ask(ended.model, ended.turn)
        else:
            ended.turn.give_back()
        for turn in [turn for turn in self.waiting if turn.has_slot]:
            assert turn.take()
            self._begin(self.waiting.pop(turn), turn)

    def _begin(self, model: str, turn: Turn) -> None:
        self.order.append(model)
        self.running.append(Running(self.now_s + self.run_s[model], self.run_s[model], model, turn))


def holds(turn: Turn) -> bool:
    return turn.has_slot


def test_without_others_nobody_waits() -> None:
    play = Play(2, {"a": 1.0})
    first, second = play.ask("a"), play.ask("a")
    assert holds(first)
    assert holds(second)
    for _ in range(5):
        assert first.take()
    first.give_back()
    assert not holds(first)
    assert first.take()


def test_busy_models_share_the_device_by_their_weights() -> None:
    play = Play(1, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 3.0})
    play.work("a", "b")
    for _ in range(40):
        play.step()
    assert abs(3 * play.used_s["a"] - play.used_s["b"]) <= 3
    # The models alternate.
    assert "b, b, b, a, b, b, b, a" in ", ".join(play.order)


def test_it_is_time_that_is_shared_not_batches() -> None:
    play = Play(1, {"long": 5.0, "short": 1.0})
    play.work("long", "short")
    for _ in range(60):
        play.step()
    assert play.order.count("short") == pytest.approx(5 * play.order.count("long"), abs=5)


@given(
    run_s=st.lists(st.floats(0.001, 10), min_size=2, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    steps=st.integers(1, 200),
)
@settings(deadline=None)
def test_of_two_busy_models_neither_is_ahead_by_more_than_a_batch_of_each(
    run_s: list[float], weights: list[float], steps: int
) -> None:
    # Goyal et al., theorem 1: |W_f / r_f - W_m / r_m| <= l_f / r_f + l_m / r_m in any interval in which both are busy.
    names = [f"m{index}" for index in range(len(run_s))]
    play = Play(1, dict(zip(names, run_s, strict=True)), dict(zip(names, weights, strict=False)))
    play.work(*names)
    weight = dict(zip(names, weights, strict=False))
    for _ in range(steps):
        play.step()
        shares = [play.used_s[name] / weight[name] for name in names]
        batches = [play.run_s[name] / weight[name] for name in names]
        for one in range(len(names)):
            for other in range(one):
                bound = batches[one] + batches[other]
                assert abs(shares[one] - shares[other]) <= bound * (1 + 1e-9)


@given(runs_before=st.integers(1, 50), heavy_s=st.floats(0.1, 10), light_s=st.floats(0.01, 0.1))
def test_a_light_model_waits_for_no_more_than_the_batch_that_runs(
    runs_before: int, heavy_s: float, light_s: float
) -> None:
    play = Play(1, {"heavy": heavy_s, "light": light_s})
    play.work("heavy")
    for _ in range(3):
        for _ in range(runs_before):
            play.step()
        asked_s = play.now_s
        turn = play.ask("light")
        assert not holds(turn)
        play.step()
        assert holds(turn)
        assert play.now_s - asked_s <= heavy_s * (1 + 1e-9)
        play.step()


def test_time_without_work_is_no_credit() -> None:
    play = Play(1, {"a": 1.0, "b": 1.0})
    play.work("a")
    for _ in range(100):
        play.step()
    play.work("b")
    before = dict(play.used_s)
    for _ in range(20):
        play.step()
    assert play.used_s["a"] - before["a"] == pytest.approx(10, abs=1)


def test_an_idle_device_forgets_debts() -> None:
    play = Play(1, {"a": 5.0, "b": 1.0})
    play.ask("a")
    play.step()
    play.run_s["a"] = 1.0
    play.work("b", "a")
    for _ in range(6):
        play.step()
    assert play.order[1:7] == ["b", "a", "b", "a", "b", "a"]


def test_versions_of_a_model_share_its_part() -> None:
    play = Play(1, {"a": 1.0, "b": 1.0})
    play.device.join(ServableId("a", 2), 1.0)
    play.work("a", "b")
    play.ask("a", play.device.turn(ServableId("a", 2)))
    for _ in range(40):
        play.step()
    assert play.used_s["a"] == pytest.approx(play.used_s["b"], abs=1)


def test_the_latest_versions_weight_counts_until_it_leaves() -> None:
    play = Play(1, {"a": 1.0, "b": 1.0})
    play.device.join(ServableId("a", 2), 3.0)
    play.work("a", "b")
    for _ in range(40):
        play.step()
    assert play.used_s["a"] == pytest.approx(30, abs=1)
    play.device.leave(ServableId("a", 2))
    for _ in range(40):
        play.step()
    assert play.used_s["a"] == pytest.approx(50, abs=1)


def test_a_slot_goes_to_who_waits_not_to_who_comes_by() -> None:
    device = DeviceShare(1)
    for name in "abc":
        device.join(ServableId(name, 1), 1.0)
    a, b, c = (device.turn(ServableId(name, 1)) for name in "abc")
    assert a.take()
    assert not b.take()
    assert b.line_up()
    a.used_s += 1.0
    a.give_back()
    assert holds(b)
    assert not c.take()


def test_who_waits_may_leave_the_line() -> None:
    device = DeviceShare(1)
    for name in "ab":
        device.join(ServableId(name, 1), 1.0)
    called: list[str] = []
    a, b = (device.turn(ServableId(name, 1), functools.partial(called.append, name)) for name in "ab")
    assert a.take()
    assert b.line_up()
    b.close()
    b.close()
    assert called == ["b"]
    assert not holds(b)
    assert not b.line_up()
    a.used_s += 1.0
    # No model is ahead of it any more.
    assert a.take()


def test_a_turn_in_line_is_called_once_it_has_the_slot() -> None:
    device = DeviceShare(1)
    for name in "ab":
        device.join(ServableId(name, 1), 1.0)
    called: list[bool] = []
    a, b = (device.turn(ServableId(name, 1), lambda: called.append(holds(b))) for name in "ab")
    assert a.take()
    assert b.line_up()
    assert called == []
    a.give_back()
    assert called == [True]


def test_without_weights_a_device_may_have_no_limit() -> None:
    device = DeviceShare(1, only_weighted=True)
    for name in "ab":
        device.join(ServableId(name, 1), 1.0)
    a, b = (device.turn(ServableId(name, 1)) for name in "ab")
    assert a.take()
    assert b.take()
    # From now on the models take turns, and one must wait.
    device.join(ServableId("c", 1), 2.0)
    a.used_s += 1.0
    assert not a.take()
    assert a.line_up()
    assert b.take()
    # From now on both may run again.
    device.leave(ServableId("c", 1))
    assert holds(a)
    assert a.take()
    assert b.take()


def test_busy_times_count_models_that_run_at_the_same_time() -> None:
    clock = FakeClock()
    device = DeviceShare(4, clock=clock)
    for name in ("a", "b"):
        device.join(ServableId(name, 1), 1.0)
    first, second, other = (device.turn(ServableId(name, 1)) for name in ("a", "a", "b"))
    clock.advance(1.0)
    assert first.take()
    clock.advance(1.0)
    # Another batch of the same model is no other model.
    assert second.take()
    clock.advance(1.0)
    assert other.take()
    clock.advance(1.0)
    assert device.busy_times() == BusyTimes(3.0, 4.0)
    for turn in (first, second, other):
        turn.give_back()
    clock.advance(1.0)
    assert device.busy_times() == BusyTimes(3.0, 4.0)
