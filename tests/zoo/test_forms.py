"""Tests of the generator of forms."""

import pytest

from tests.zoo.catalogue.operation import operation
from tests.zoo.forms import Form, Kind, forms

OUTER = operation("outer", lambda x, y: x @ y, x="f N,M,3", y="i M=2")
ALL = forms(OUTER)


def of_kind(kind: Kind) -> list[Form]:
    return [form for form in ALL if form.kind is kind]


def test_first_form_is_the_valid_one_and_no_form_repeats() -> None:
    assert ALL[0] == Form(Kind.VALID, {"x": (2, 3, 3), "y": (3,)})
    assert len({str(form) for form in ALL}) == len(ALL)


def test_small_forms_have_each_size_and_equal_names() -> None:
    small = of_kind(Kind.SMALL)
    assert {form.shapes["x"][0] for form in small} == {0, 1, 2, 3, 8}
    assert all(form.shapes["x"][1] == form.shapes["y"][0] and form.shapes["x"][2] == 3 for form in small)


def test_wrong_ranks_are_those_from_0_to_6() -> None:
    ranks = {len(form.shapes["x"]) for form in of_kind(Kind.RANK)} | {len(form.shapes["y"]) for form in ALL}
    assert ranks == {0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("size", [2**20, 2**31, 2**45])
def test_huge_dimensions_have_an_empty_one_at_every_other_place(size: int) -> None:
    pairs = {
        (place, empty)
        for form in of_kind(Kind.HUGE)
        for place, one in enumerate(form.shapes["x"])
        for empty, other in enumerate(form.shapes["x"])
        if len(form.shapes["x"]) == 3 and one == size and other == 0
    }
    assert pairs == {(place, empty) for place in range(3) for empty in range(3) if place != empty}
    assert all(form.size < 100 for form in of_kind(Kind.HUGE))
