"""Tests of the simulated fleet: the shipped autoscaler reaches its goals on demand, and not on other signals."""

import functools

import pytest

from benchmarks.fleet.curves import CURVES, Curve
from benchmarks.fleet.fleet import LEAST_GOODPUT, LOAD, MOST_OF_IDEAL, PERIODS, SERVERS, START_UP_S, settings_of
from benchmarks.fleet.responses import POLICIES, TIGHT, Policy, Response, ServerResponses, measure
from benchmarks.fleet.simulation import SIGNALS, Outcome, Signal, overloaded_wish, simulate

SETTINGS = settings_of()
QUEUE_WAIT, UTILISATION, DEMAND, KEDA = SIGNALS

policies = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@functools.cache
def responses_of(policy: Policy) -> ServerResponses:
    return ServerResponses.of(policy, seconds=5.0)


def play(policy: Policy, curve: Curve, signal: Signal) -> Outcome:
    return simulate(curve, signal, responses_of(policy), SETTINGS, START_UP_S)


@policies
@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
@pytest.mark.parametrize("signal", [DEMAND, KEDA], ids=lambda signal: signal.name)
def test_the_shipped_autoscaler_reaches_its_goals(policy: Policy, curve: Curve, signal: Signal) -> None:
    outcome = play(policy, curve, signal)
    assert outcome.worst_minute(SETTINGS, PERIODS) >= LEAST_GOODPUT
    assert outcome.wrong_removals_s == ()
    assert outcome.of_ideal <= MOST_OF_IDEAL


@pytest.mark.parametrize("policy", [*POLICIES, TIGHT], ids=lambda policy: policy.name)
def test_a_lasting_overload_asks_for_the_servers_that_it_needs(policy: Policy) -> None:
    wanted = overloaded_wish(DEMAND, responses_of(policy), SETTINGS, SERVERS, LOAD)
    assert wanted == pytest.approx(SERVERS * LOAD / SETTINGS.target, rel=0.03)


def test_queue_wait_removes_servers_that_refuse_most_requests() -> None:
    wanted = overloaded_wish(QUEUE_WAIT, responses_of(TIGHT), SETTINGS, SERVERS, LOAD)
    assert responses_of(TIGHT).at(LOAD).answered < 0.25 * LOAD * 100
    assert wanted == 2


def test_queue_wait_adds_no_server_for_requests_that_are_refused() -> None:
    [step] = [curve for curve in CURVES if curve.name == "step"]
    outcome = play(POLICIES[0], step, QUEUE_WAIT)
    assert {moment.servers for moment in outcome.moments} == {SETTINGS.least}
    assert outcome.worst_minute(SETTINGS, PERIODS) < 0.5


def test_utilisation_is_too_slow_for_a_step() -> None:
    [step] = [curve for curve in CURVES if curve.name == "step"]
    assert play(POLICIES[0], step, UTILISATION).worst_minute(SETTINGS, PERIODS) < LEAST_GOODPUT


def test_clients_that_retry_count_as_new_requests_until_they_get_an_answer() -> None:
    # One server without a queue, twice its load for a step: half is refused, and comes again.
    curve = Curve("storm", 60.0, lambda at_s: 2.0 if at_s < 5.0 else 0.2, retries=3)
    half = ServerResponses(
        {0.0: Response(0, 0, 0, 0, 0), 1.0: Response(100, 100, 0, 1, 1), 9.0: Response(100, 100, 0, 1, 9)}
    )
    settings = settings_of()
    outcome = simulate(curve, DEMAND, half, settings, START_UP_S)
    # Two servers get 200 a second and answer all of them.
    assert outcome.moments[0].answered == pytest.approx(200.0)
    storm = simulate(
        Curve("storm", 60.0, lambda at_s: 4.0 if at_s < 5.0 else 0.4, retries=3), DEMAND, half, settings, 1e6
    )
    assert [round(moment.answered) for moment in storm.moments[:4]] == [200, 200, 80, 40]


@policies
def test_a_server_answers_what_it_can(policy: Policy) -> None:
    low, high = measure(policy, 0.2, 5.0), measure(policy, 4.0, 5.0)
    assert low.answered == pytest.approx(20.0, rel=0.01)
    assert low.demand == pytest.approx(0.2)
    assert high.answered == pytest.approx(100.0, rel=0.05)
    assert high.demand == pytest.approx(4.0, rel=0.02)


def test_loads_between_measured_ones_lie_on_a_line() -> None:
    responses = ServerResponses({0.0: Response(0, 0, 0, 0, 0), 1.0: Response(80, 90, 2, 1, 1)})
    assert responses.at(0.5) == Response(40, 45, 1, 0.5, 0.5)
    assert responses.at(2.0) == Response(80, 90, 2, 1, 2.0)
