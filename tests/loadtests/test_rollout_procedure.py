"""Tests for the order of a rollout's steps, with scripted gates and labels."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tpuserve_loadtests.rollout.moves import LABELS, Move, NotMoved, ServerGone
from tpuserve_loadtests.rollout.procedure import Gate, Judged, Outcome, Rollout, Step, StepState

LIVE, NEW = 3, 4


class World:
    """The labels of a server, and the steps in order. `refuses` selects label moves that fail."""

    wording = LABELS

    def __init__(self) -> None:
        self.labels: dict[str, int | None] = {"stable": LIVE, "canary": None}
        self.done: list[str] = []
        self.refuses: Callable[[Mapping[str, int | None]], bool] = lambda changes: False
        self.signalled = False
        self.is_gone = False
        self.now_s = 1000.0

    def move(self, changes: Mapping[str, int | None]) -> None:
        if self.refuses(changes):
            raise NotMoved("no")
        self.labels.update(changes)
        self.now_s += 1
        self.done.append(f"{changes}")

    def restore(self, labels: Mapping[str, int | None]) -> None:
        if self.is_gone:
            raise ServerGone("gone")
        self.move(labels)

    def restored_words(self, values: Mapping[str, int | None]) -> str:
        return f"{values}"

    def gate(self, name: str, exit_code: int = 0, *, cheap: bool = False, signal: bool = False) -> Gate:
        def judge() -> Judged:
            self.done.append(name)
            self.now_s += 10
            self.signalled = self.signalled or signal
            return Judged(exit_code, "as told")

        return Gate(name, "will be told", judge, cheap)

    def rollout(self, *gates: Gate, between: Gate | None = None, soak: Gate | None = None) -> Rollout:
        canary, stable = (
            Move(f"label {label}", label, self.labels[label], NEW, "to 4") for label in ("canary", "stable")
        )
        sequence: list[Gate | Move] = [
            *gates,
            canary,
            *([between] if between else []),
            stable,
            *([soak] if soak else []),
        ]
        return Rollout(sequence, self, lambda: self.signalled, lambda step: None, lambda: self.now_s)


@pytest.fixture
def world() -> World:
    return World()


def states(steps: list[Step]) -> list[tuple[str, StepState]]:
    return [(step.name, step.state) for step in steps]


def test_all_gates_then_the_canary_with_its_gate_then_stable_then_the_soak(world: World) -> None:
    gates = world.gate("parity"), world.gate("shadow")
    job = world.rollout(*gates, between=world.gate("canary"), soak=world.gate("soak"))
    assert job.execute() is Outcome.PROMOTED
    assert world.done == ["parity", "shadow", "{'canary': 4}", "canary", "{'stable': 4}", "soak"]
    assert job.exit_code == 0


def test_a_canary_that_fails_never_reaches_users(world: World) -> None:
    job = world.rollout(world.gate("shadow"), between=world.gate("canary", 99), soak=world.gate("soak"))
    assert job.execute() is Outcome.MOVED_BACK
    assert job.exit_code == 99
    assert world.done == ["shadow", "{'canary': 4}", "canary", "{'canary': None}"]


def test_each_step_begins_where_the_last_one_ended(world: World) -> None:
    job = world.rollout(world.gate("parity"), world.gate("shadow"), soak=world.gate("soak"))
    job.execute()
    assert [(step.start_s, step.seconds) for step in job.steps] == [(0, 10), (10, 10), (20, 1), (21, 1), (22, 10)]


def test_a_dry_run_asks_what_is_cheap_and_touches_nothing(world: World) -> None:
    job = world.rollout(world.gate("parity", cheap=True), world.gate("shadow"), soak=world.gate("soak"))
    assert job.plan() is Outcome.PLANNED
    assert world.done == ["parity"]
    assert [name for name, state in states(job.steps) if state is StepState.PLANNED] == [
        "shadow", "label canary", "label stable", "soak",
    ]  # fmt: skip


@pytest.mark.parametrize(("failing", "exit_code"), [("parity", 99), ("shadow", 98)])
def test_a_gate_that_fails_leaves_the_labels_alone(world: World, failing: str, exit_code: int) -> None:
    gates = [world.gate(name, exit_code if name == failing else 0) for name in ("parity", "shadow")]
    job = world.rollout(*gates, soak=world.gate("soak"))
    assert job.execute() is Outcome.REFUSED
    assert job.exit_code == exit_code
    assert world.labels == {"stable": LIVE, "canary": None}
    assert world.done[-1] == failing


def test_a_soak_that_fails_moves_both_labels_back_in_one_step(world: World) -> None:
    job = world.rollout(soak=world.gate("soak", 99))
    assert job.execute() is Outcome.MOVED_BACK
    assert job.exit_code == 99
    assert world.labels == {"stable": LIVE, "canary": None}
    assert world.done[-1] == "{'canary': None, 'stable': 3}"
    assert ("labels back", StepState.DONE) in states(job.steps)


def test_a_signal_in_the_shadow_ends_it_before_anything_is_moved(world: World) -> None:
    job = world.rollout(world.gate("shadow", signal=True), soak=world.gate("soak"))
    assert job.execute() is Outcome.REFUSED
    assert job.exit_code == 130
    assert world.done == ["shadow"]


def test_a_signal_in_the_soak_moves_the_labels_back_though_all_was_well(world: World) -> None:
    job = world.rollout(soak=world.gate("soak", signal=True))
    assert job.execute() is Outcome.MOVED_BACK
    assert job.exit_code == 130
    assert world.labels["stable"] == LIVE


def ending(error: BaseException) -> Gate:
    def judge() -> Judged:
        raise error

    return Gate("soak", "", judge)


def test_whatever_breaks_in_the_soak_moves_the_labels_back(world: World) -> None:
    job = world.rollout(soak=ending(RuntimeError()))
    with pytest.raises(RuntimeError):
        job.execute()
    assert world.labels == {"stable": LIVE, "canary": None}


def test_a_soak_that_loses_its_server_is_one_that_failed(world: World) -> None:
    job = world.rollout(soak=ending(SystemExit(3)))
    assert job.execute() is Outcome.MOVED_BACK
    assert job.exit_code == 3
    assert ("soak", StepState.FAILED) in states(job.steps)
    assert world.labels == {"stable": LIVE, "canary": None}


def test_a_label_that_cannot_be_moved_takes_the_other_one_back(world: World) -> None:
    world.refuses = lambda changes: changes.get("stable") == NEW
    job = world.rollout(soak=world.gate("soak"))
    assert job.execute() is Outcome.MOVED_BACK
    assert job.exit_code == 1
    assert world.labels == {"stable": LIVE, "canary": None}
    assert "soak" not in world.done


def test_labels_that_cannot_be_moved_back_are_told(world: World) -> None:
    world.refuses = lambda changes: changes.get("stable") == LIVE
    job = world.rollout(soak=world.gate("soak", 99))
    assert job.execute() is Outcome.STUCK
    assert job.exit_code == 1
    assert world.labels == {"stable": NEW, "canary": NEW}
    assert ("labels back", StepState.FAILED) in states(job.steps)


def test_a_server_that_is_gone_when_the_labels_move_back_is_reported(world: World) -> None:
    world.is_gone = True
    job = world.rollout(soak=world.gate("soak", 99))
    assert job.execute() is Outcome.SERVER_GONE
    assert job.exit_code == 3
    assert job.steps[-1].detail == "gone"


def test_a_terminal_that_closes_between_the_moves_moves_the_labels_back(world: World) -> None:
    def on_step(step: Step) -> None:
        if step.name == "label canary":
            raise BrokenPipeError

    job = replace(world.rollout(soak=world.gate("soak")), on_step=on_step)
    with pytest.raises(BrokenPipeError):
        job.execute()
    assert world.labels == {"stable": LIVE, "canary": None}


def test_a_canary_that_is_there_already_is_not_moved_nor_taken_away(world: World) -> None:
    world.labels["canary"] = NEW
    job = world.rollout(soak=world.gate("soak", 99))
    assert job.execute() is Outcome.MOVED_BACK
    assert ("label canary", StepState.SKIPPED) in states(job.steps)
    assert world.labels == {"stable": LIVE, "canary": NEW}
