"""Tests for the plan of an ensemble: which steps run for an output, and whether they form a chain."""

import pytest

from tests.support.ensembles import make_ensemble
from tpuserve_server.ensembles.runner import Pipeline, Plan

# left and right run side by side, and join needs both. `features` is another output.
DIAMOND = Pipeline.of(
    make_ensemble(
        "join x=l w=r -> y=scores",
        "left x=image -> y=l",
        "right x=image -> y=r z=features",
        outputs="scores features",
    )
)


def test_steps_stand_behind_those_that_they_need() -> None:
    assert [step.model.name for step in DIAMOND.steps] == ["left", "right", "join"]
    assert DIAMOND.needs == ((), (), (0, 1))


def test_steps_that_may_run_side_by_side_are_no_chain() -> None:
    assert DIAMOND.whole == Plan((0, 1, 2), is_chain=False)


def test_each_step_that_needs_the_one_before_makes_a_chain() -> None:
    chain = Pipeline.of(make_ensemble("a x=0 -> y=1", "b x=1 w=0 -> y=2", "c x=2 w=1 -> y=3"))
    assert chain.whole == Plan((0, 1, 2), is_chain=True)


@pytest.mark.parametrize(
    ("outputs", "plan"),
    [
        (("scores", "features"), Plan((0, 1, 2), is_chain=False)),
        (("scores",), Plan((0, 1, 2), is_chain=False)),
        (("features",), Plan((1,), is_chain=True)),
    ],
)
def test_only_the_steps_that_an_output_needs_run(outputs: tuple[str, ...], plan: Plan) -> None:
    assert DIAMOND.plan(outputs) == plan
