"""The client behind a proxy that injects faults, over both protocols, blocking and asyncio.

Rules:

1. The client retries a request that the server did not execute, and the call succeeds.
2. The client repeats a request that may have been executed (a cut connection, a gateway's 502) at most once, because
   predictions are idempotent. With Retry(idempotent=False) it does not repeat the request.
3. A server's hint to wait is obeyed up to Retry.max_pushback_s (30 s). A longer hint ends the call, and the error has
   it as `retry_after_s`. The gRPC pushback -1 ends the call.
4. ResourceExhausted is retried only with a hint.
5. Behind a path that went dead without a close, the client soon uses a new connection.
6. A malformed response is Internal.
7. Every failure is a TpuserveError. str() names the address, the model, the number of attempts and the timeout;
   `address`, `model` and `attempts` are attributes, and `message` is the server's text.
"""

import re
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

from tests.clients.faults.fault import UNAVAILABLE, Answer, grpc_error, page, rest_error
from tests.clients.faults.fault_table import KINDS
from tests.clients.faults.scenarios import ANSWERED, EXECUTED, LATE, MALFORMED, NOT_EXECUTED, PERMANENT
from tests.clients.faults.scripted_upstream import Upstream
from tests.clients.faults.trial import Scenario, Trial, run_trial
from tpuserve_client import Internal, ResourceExhausted, TpuserveError, Unavailable

MAX_ATTEMPTS: Final = 4  # Retry's default
HOUR_S: Final = 3600.0
FAILING: Final = [*PERMANENT, *LATE, *MALFORMED]


def each(scenarios: list[Scenario]) -> list[ParameterSet]:
    """Return a parameter for each scenario and each client that can meet it: (scenario, protocol, kind)."""
    return [
        pytest.param(scenario, protocol, kind, id=f"{scenario.name} [{kind} {protocol}]")
        for scenario in scenarios
        for protocol in scenario.protocols
        for kind in KINDS
    ]


def of_each_client(scenarios: list[Scenario]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("scenario", "protocol", "kind"), each(scenarios))


@of_each_client([*NOT_EXECUTED, *ANSWERED])
def test_request_that_was_not_executed_is_retried(
    scenario: Scenario, protocol: str, kind: str, behind: Upstream
) -> None:
    trial = run_trial(scenario, kind, protocol, behind)
    assert (trial.error, trial.executed) == (None, 1)


@of_each_client(EXECUTED)
def test_executed_request_is_repeated(scenario: Scenario, protocol: str, kind: str, behind: Upstream) -> None:
    trial = run_trial(scenario, kind, protocol, behind)
    assert (trial.error, trial.executed) == (None, 2)


@of_each_client([Scenario(executed.name, executed.injection, None) for executed in EXECUTED])
def test_executed_request_is_repeated_at_most_once(
    scenario: Scenario, protocol: str, kind: str, behind: Upstream
) -> None:
    trial = run_trial(scenario, kind, protocol, behind)
    assert isinstance(trial.error, Unavailable)
    assert (trial.executed, trial.recovered_at) == (2, 2)


@of_each_client(
    [Scenario(executed.name, executed.injection, None, retry={"idempotent": False}) for executed in EXECUTED]
)
def test_request_that_is_not_idempotent_is_executed_once(
    scenario: Scenario, protocol: str, kind: str, behind: Upstream
) -> None:
    trial = run_trial(scenario, kind, protocol, behind)
    assert isinstance(trial.error, Unavailable)
    assert (trial.executed, trial.attempts) == (1, 1)


@pytest.mark.parametrize(("retry", "requests"), [({}, 2), ({"idempotent": False}, 1)])
def test_bad_gateway_counts_as_a_cut_connection(
    kind: str, retry: dict[str, bool], requests: int, behind: Upstream
) -> None:
    trial = run_trial(Scenario("502", page(502), None, retry=retry), kind, "rest", behind)
    assert isinstance(trial.error, Unavailable)
    assert trial.requests == requests


@pytest.mark.parametrize(
    ("protocol", "refusal"), [("grpc", grpc_error(UNAVAILABLE, "loading")), ("rest", rest_error(503, "loading"))]
)
def test_server_that_refuses_gets_all_attempts(protocol: str, refusal: Answer, kind: str, behind: Upstream) -> None:
    trial = run_trial(Scenario("unavailable", refusal, None), kind, protocol, behind)
    assert isinstance(trial.error, Unavailable)
    assert (trial.requests, trial.attempts) == (MAX_ATTEMPTS, MAX_ATTEMPTS)


def test_pushback_of_minus_one_ends_the_call(kind: str, behind: Upstream) -> None:
    trial = run_trial(Scenario("stop", grpc_error(UNAVAILABLE, "stop", -1), None), kind, "grpc", behind)
    assert isinstance(trial.error, Unavailable)
    assert trial.requests == 1


def ask_for_an_hour(protocol: str, kind: str, behind: Upstream, retry: dict[str, float]) -> Trial:
    hint = grpc_error(UNAVAILABLE, "wait", 3_600_000) if protocol == "grpc" else rest_error(503, "wait", "3600")
    return run_trial(Scenario("an hour", hint, None, timeout_s=None, retry=retry), kind, protocol, behind)


def test_long_pushback_is_reported_and_not_obeyed(protocol: str, kind: str, behind: Upstream) -> None:
    trial = ask_for_an_hour(protocol, kind, behind, {})
    assert isinstance(trial.error, Unavailable)
    assert (trial.requests, trial.error.retry_after_s) == (1, HOUR_S)


def test_long_pushback_is_obeyed_if_the_caller_allows_it(protocol: str, kind: str, behind: Upstream) -> None:
    trial = ask_for_an_hour(protocol, kind, behind, {"max_pushback_s": HOUR_S})
    assert trial.requests == MAX_ATTEMPTS
    assert trial.seconds >= (MAX_ATTEMPTS - 1) * HOUR_S  # the clock skips long pauses


def test_exhausted_resource_without_a_hint_is_not_retried(kind: str, behind: Upstream) -> None:
    trial = run_trial(Scenario("429", rest_error(429, "quota"), None), kind, "rest", behind)
    assert isinstance(trial.error, ResourceExhausted)
    assert trial.requests == 1


@of_each_client(MALFORMED)
def test_truncated_response_is_internal(scenario: Scenario, protocol: str, kind: str, behind: Upstream) -> None:
    trial = run_trial(scenario, kind, protocol, behind)
    assert isinstance(trial.error, Internal)
    assert trial.executed == 1


# Two tests in different processes would run the same trial twice.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(one.values, id=str(one.id), marks=pytest.mark.xdist_group(f"failing {number}"))
        for number, one in enumerate(each(FAILING))
    ],
)
def failing(request: pytest.FixtureRequest, shared_upstream: Upstream) -> tuple[Scenario, Trial]:
    """Return a scenario whose first call fails, and its trial."""
    scenario, protocol, kind = request.param
    shared_upstream.server.reset()
    return scenario, run_trial(scenario, kind, protocol, shared_upstream)


def test_client_recovers_when_the_fault_ends(failing: tuple[Scenario, Trial]) -> None:
    assert None in failing[1].outcomes[1:]


def test_error_names_address_model_attempts_and_limit(failing: tuple[Scenario, Trial]) -> None:
    scenario, trial = failing
    assert isinstance(trial.error, TpuserveError)
    error: Any = trial.error  # Any: also a client without the attributes
    assert trial.address in str(error)
    assert "affine" in str(error)
    assert re.search(rf"\b{error.attempts} attempt", str(error))
    if scenario.timeout_s is not None:
        assert re.search(rf"\b{scenario.timeout_s:g}(\.0)? s\b", str(error))
    assert (trial.address in error.address, error.model) == (True, "affine")
    if trial.requests:  # refused connections and unfinished handshakes carry none
        assert error.attempts == trial.requests


@pytest.mark.parametrize(
    ("protocol", "refusal"), [("grpc", grpc_error(UNAVAILABLE, "loading")), ("rest", rest_error(503, "loading"))]
)
def test_message_is_the_servers_text(protocol: str, refusal: Answer, kind: str, behind: Upstream) -> None:
    trial = run_trial(Scenario("unavailable", refusal, None), kind, protocol, behind)
    assert isinstance(trial.error, TpuserveError)
    assert trial.error.message == "loading"
