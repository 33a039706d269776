"""Tests for the benchmark of access: every client is allowed, and costs have their limits."""

import itertools

import pytest

from benchmarks.access.access import measure
from benchmarks.access.cases import CASES, Case, make_clients


def test_a_cost_is_the_median_of_the_rounds() -> None:
    values = itertools.cycle((1.0, 10.0, 2.0))
    [cost] = measure([Case("key", lambda _clients: next(values), 5.0)], 3)
    assert (cost.name, cost.cpu_us, cost.limit_us) == ("key", 2.0, 5.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rule_allows_the_client_of_every_case(case: Case) -> None:
    """A client that the rule refused would raise."""
    assert case.measure(make_clients()) > 0
