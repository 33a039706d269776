"""Tests for the tensors of an ensemble, and the order of its steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ensembles import make_ensemble
from tpuserve_server.core.terms.ensemble import find_needs, order_steps
from tpuserve_server.core.terms.errors import InvalidArgument


def test_tensors_that_no_step_produces_are_inputs_and_those_that_no_step_takes_are_outputs() -> None:
    ensemble = make_ensemble("a x=image s=size -> y=scaled", "b x=scaled -> y=scores z=features")
    assert ensemble.inputs == ("image", "size")
    assert ensemble.outputs == ("scores", "features")


def test_declared_tensors_replace_the_implied_ones() -> None:
    ensemble = make_ensemble("a x=image -> y=scaled", "b x=scaled -> y=scores", inputs="image", outputs="scaled scores")
    assert ensemble.inputs == ("image",)
    assert ensemble.outputs == ("scaled", "scores")


def test_steps_follow_those_that_they_need() -> None:
    ensemble = make_ensemble("c x=2 -> y=3", "b x=1 -> y=2", "a x=0 -> y=1")
    assert [step.model.name for step in order_steps(ensemble.steps)] == ["a", "b", "c"]


@given(st.permutations(range(8)), st.data())
def test_every_order_of_a_graph_without_a_cycle_is_found(order: list[int], data: st.DataObject) -> None:
    takes = [data.draw(st.sets(st.sampled_from(order[:place] or [-1]), min_size=1)) for place in range(len(order))]
    texts = {
        name: f"m{name} {' '.join(f'x{other}=t{other}' for other in sorted(needed))} -> y=t{name}"
        for name, needed in zip(order, takes, strict=True)
    }
    steps = make_ensemble(*[texts[name] for name in range(8)]).steps
    ordered = [step.number for step in order_steps(steps)]
    needs = find_needs(steps)
    assert sorted(ordered) == list(range(1, 9))
    assert all(ordered.index(other) < ordered.index(number) for number, others in needs.items() for other in others)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["a x=y -> y=y"], "its steps form a cycle: step 1 (a) -> step 1 (a)"),
        (
            ["a x=0 w=3 -> y=1", "b x=1 -> y=2", "c x=2 -> y=3"],
            "its steps form a cycle: step 1 (a) -> step 2 (b) -> step 3 (c) -> step 1 (a)",
        ),
    ],
)
def test_a_cycle_is_refused_with_its_steps(steps: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        order_steps(make_ensemble(*steps).steps)
    assert caught.value.message == message


def test_a_long_cycle_names_only_some_steps() -> None:
    steps = [f"m{number} x=t{number} -> y=t{(number + 1) % 5000}" for number in range(5000)]
    with pytest.raises(InvalidArgument, match=r"…$") as caught:
        order_steps(make_ensemble(*steps).steps)
    assert len(caught.value.message) < 300
