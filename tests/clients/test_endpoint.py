"""Tests for the choice among several endpoints, with a clock that the test sets."""

import pytest

from tests.clients.clients_under_test import Clock
from tpuserve_client.address import Address, parse_addresses
from tpuserve_client.endpoint import Endpoint, Endpoints

THREE = parse_addresses("a:1,b:2,c:3")


def chosen(endpoints: Endpoints, count: int) -> list[str]:
    picks = [endpoints.choose() for _ in range(count)]
    return [str(pick) for pick in picks]


def test_endpoints_take_turns(clock: Clock) -> None:
    picks = chosen(Endpoints(THREE, resolve_all=False, clock=clock), 6)
    assert sorted(picks[:3]) == ["a:1", "b:2", "c:3"]
    assert picks[3:] == picks[:3]


def test_retry_prefers_an_endpoint_that_the_call_has_not_tried(clock: Clock) -> None:
    endpoints = Endpoints(THREE, resolve_all=False, clock=clock)
    tried = {Endpoint(THREE[0]), Endpoint(THREE[2])}
    assert {str(endpoints.choose(tried)) for _ in range(6)} == {"b:2"}
    assert endpoints.have_other_than(tried)
    assert not endpoints.have_other_than({Endpoint(place) for place in THREE})


def test_endpoint_is_ejected_after_three_failures_in_a_row_and_returns(clock: Clock) -> None:
    endpoints = Endpoints(THREE, resolve_all=False, clock=clock)
    bad = Endpoint(THREE[1])
    endpoints.count_failure(bad)
    endpoints.count_failure(bad)
    endpoints.count_success(bad)
    for _ in range(3):
        assert "b:2" in chosen(endpoints, 3)
        endpoints.count_failure(bad)
    assert "b:2" not in chosen(endpoints, 6)
    clock.now_s += 5.0
    assert "b:2" in chosen(endpoints, 3)
    endpoints.count_failure(bad)  # the first failure after the ejection ejects for longer
    clock.now_s += 9.0
    assert "b:2" not in chosen(endpoints, 6)
    clock.now_s += 1.0
    assert "b:2" in chosen(endpoints, 3)


def test_ejected_endpoints_are_used_if_there_is_no_other(clock: Clock) -> None:
    endpoints = Endpoints(THREE, resolve_all=False, clock=clock)
    for place in THREE:
        for _ in range(3):
            endpoints.count_failure(Endpoint(place))
    assert sorted(chosen(endpoints, 3)) == ["a:1", "b:2", "c:3"]


def test_only_endpoint_is_never_ejected(clock: Clock) -> None:
    endpoints = Endpoints(THREE[:1], resolve_all=False, clock=clock)
    for _ in range(9):
        endpoints.count_failure(Endpoint(THREE[0]))
    assert chosen(endpoints, 1) == ["a:1"]


@pytest.mark.parametrize(
    ("text", "resolve_all", "expected"),
    [
        ("dns:///model:8500", False, ["10.0.0.1:8500 (model:8500)", "[fd00::1]:8500 (model:8500)"]),
        ("model:8500", True, ["10.0.0.1:8500 (model:8500)", "[fd00::1]:8500 (model:8500)"]),
        ("http://model:8501/p", True, ["http://10.0.0.1:8501/p (model:8501)", "http://[fd00::1]:8501/p (model:8501)"]),
        ("https://model", True, ["https://10.0.0.1 (model)", "https://[fd00::1] (model)"]),
    ],
)
def test_name_stands_for_all_its_addresses(clock: Clock, text: str, resolve_all: bool, expected: list[str]) -> None:
    (place,) = parse_addresses(text)
    endpoints = Endpoints([place], resolve_all=resolve_all, clock=clock)
    assert endpoints.stale() == place
    assert endpoints.choose() is None
    endpoints.put_lookup(place, ["fd00::1", "10.0.0.1"])
    assert endpoints.stale() is None
    assert sorted(chosen(endpoints, 2)) == expected


def test_lookup_is_repeated_and_a_failed_one_keeps_the_addresses(clock: Clock) -> None:
    (place,) = parse_addresses("dns:///model:8500")
    endpoints = Endpoints([place], resolve_all=False, clock=clock)
    endpoints.put_lookup(place, [])
    assert endpoints.stale() == place  # nothing is known: the next attempt looks again
    endpoints.put_lookup(place, ["10.0.0.1"])
    clock.now_s += 30.0
    assert endpoints.stale() == place
    endpoints.put_lookup(place, [])
    assert endpoints.stale() is None
    assert chosen(endpoints, 1) == ["10.0.0.1:8500 (model:8500)"]


@pytest.mark.parametrize("text", ["127.0.0.1:8500", "http://[::1]:8501", "unix:/run/a"])
def test_address_without_a_name_is_not_looked_up(clock: Clock, text: str) -> None:
    endpoints = Endpoints(parse_addresses(text), resolve_all=True, clock=clock)
    assert endpoints.stale() is None


def test_addresses_are_a_list_or_a_text_with_commas() -> None:
    expected = (Address("a:8500", is_rest=False), Address("b:9", is_rest=False))
    assert parse_addresses("a, b:9") == parse_addresses(["a", "b:9", "a"]) == expected
