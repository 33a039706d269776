"""Tests for options of a call in addition to the inputs: headers, hooks, retries, several addresses, pickling."""

import asyncio
import logging
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.garbage import collected_at_end
from tests.clients.model_server import Failure, ModelServer, serving
from tpuserve_client import (
    AsyncClient,
    Attempt,
    Client,
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Pool,
    Retry,
    TpuserveError,
    Unauthenticated,
    Unavailable,
)

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_call_headers_replace_the_clients(address: str, kind: str, server: ModelServer) -> None:
    with make_client(kind, address, headers={"x-team": "vision", "x-env": "test"}) as client:
        client.status("affine", headers={"X-Team": "search", "x-run-bin": "AAE="})
        client.status("affine")
    first, second = (served.headers for served in server.served)
    run = first["x-run-bin"]
    assert (first["x-team"], first["x-env"], run) == ("search", "test", b"\0\1" if isinstance(run, bytes) else "AAE=")
    assert (second["x-team"], "x-run-bin" in second) == ("vision", False)


def test_function_gives_a_fresh_header_for_each_attempt(timed_client: Client, server: ModelServer) -> None:
    tokens = iter(["old", "new"])
    server.failures.append(Failure(Code.UNAVAILABLE))
    timed_client.status("affine", headers={"authorization": lambda: f"Bearer {next(tokens)}"})
    assert [served.headers["authorization"] for served in server.served] == ["Bearer old", "Bearer new"]


def test_time_of_a_function_counts_towards_the_deadline(
    timed_client: Client, server: ModelServer, clock: Clock
) -> None:
    def slow_token(seconds: float) -> str:
        clock.now_s += seconds
        return "Bearer late"

    timed_client.predict("affine", {"x": X}, timeout_s=30.0, headers={"authorization": lambda: slow_token(10.0)})
    left_s = server.served[0].time_left_s
    assert left_s is not None
    assert left_s < 20.5  # of 30 s; the clocks of client and server agree to within milliseconds
    sent = len(server.served)
    with pytest.raises(DeadlineExceeded, match="before the request was sent"):
        timed_client.predict("affine", {"x": X}, timeout_s=30.0, headers={"authorization": lambda: slow_token(40.0)})
    assert len(server.served) == sent


def test_function_of_the_client_may_be_a_coroutine(address: str, server: ModelServer) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return "Bearer fresh"

    async def call() -> None:
        async with AsyncClient(address, headers={"authorization": token}) as client:
            await client.status("affine")

    asyncio.run(call())
    assert server.served[0].headers["authorization"] == "Bearer fresh"


@pytest.mark.parametrize("result", [None, "two\nlines", 5])
def test_function_without_a_header_value_sends_nothing(client: Client, server: ModelServer, result: Any) -> None:  # noqa: ANN401  wrong on purpose
    with pytest.raises(InvalidArgument, match="header authorization"):
        client.status("affine", headers={"authorization": lambda: result})
    assert server.served == []


def test_failing_function_is_unauthenticated_and_keeps_its_cause(client: Client, server: ModelServer) -> None:
    def token() -> str:
        raise KeyError("no token file")

    with pytest.raises(Unauthenticated, match="function for the header authorization failed") as caught:
        client.status("affine", headers={"authorization": token})
    assert isinstance(caught.value.__cause__, KeyError)
    assert server.served == []


@pytest.mark.parametrize(
    "headers", [{"host": "a"}, {"x y": "a"}, {"x": None}, {None: "a"}, {"content-type": lambda: "a"}, ["x"]]
)
def test_headers_that_cannot_be_sent_are_refused(client: Client, server: ModelServer, headers: Any) -> None:  # noqa: ANN401  wrong on purpose
    with pytest.raises(InvalidArgument, match="header"):
        client.status("affine", headers=headers)
    assert server.served == []


def test_trace_context_of_the_caller_reaches_the_server(client: Client, server: ModelServer) -> None:
    span = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1))
    client.status("affine")
    with trace.use_span(NonRecordingSpan(span)):
        client.status("affine")
        client.status("affine", headers={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})
    sent = [served.headers.get("traceparent") for served in server.served]
    assert sent[0] is None
    assert sent[1] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert sent[2] == "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def test_hook_and_log_report_each_attempt(
    kind: str, address: str, server: ModelServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[Attempt] = []
    server.failures.append(Failure(Code.UNAVAILABLE, "loading"))
    with (
        caplog.at_level(logging.DEBUG, "tpuserve_client"),
        make_client(kind, address, clock, jitter=lambda: 0.5, on_attempt=attempts.append) as client,
    ):
        client.status("affine")
    first, second = attempts
    assert (first.number, first.pause_s, first.model) == (1, 0.05, "affine")
    assert isinstance(first.error, Unavailable)
    assert (second.number, second.error, second.pause_s) == (2, None, None)
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"]
    assert "UNAVAILABLE: loading; retry in 0.05 s" in caplog.text


def test_failing_hook_does_not_disturb_the_call(
    kind: str, address: str, server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(_attempt: Attempt) -> None:
        raise RuntimeError("a bug of the hook")

    with make_client(kind, address, on_attempt=hook) as client:
        assert client.is_ready()
    assert "a bug of the hook" in caplog.text


def test_retry_of_the_call_replaces_the_clients(timed_client: Client, server: ModelServer) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE)] * 2)
    with pytest.raises(Unavailable):
        timed_client.status("affine", retry=Retry(max_attempts=1))
    assert len(server.served) == 1
    with pytest.raises(InvalidArgument, match="retry"):
        timed_client.status("affine", retry=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", ["5", float("inf"), float("nan"), 10**400, True, [5]])
def test_timeout_must_be_a_number_of_seconds(
    kind: str,
    address: str,
    client: Client,
    server: ModelServer,
    timeout_s: Any,  # noqa: ANN401  wrong on purpose
) -> None:
    with pytest.raises(InvalidArgument, match="timeout_s must be"):
        client.status("affine", timeout_s=timeout_s)
    with pytest.raises(InvalidArgument, match="timeout_s must be"):
        client.wait_until_ready(timeout_s)
    with pytest.raises(InvalidArgument, match="timeout_s must be"):
        make_client(kind, address, timeout_s=timeout_s)
    assert server.served == []


@pytest.mark.parametrize("timeout_s", [np.float32(5), 5, np.int64(5), None])
def test_every_number_is_a_timeout(client: Client, timeout_s: Any) -> None:  # noqa: ANN401  of numpy, too
    assert client.status("affine", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "options",
    [
        {"max_connections": 0},
        {"max_connections": 2.5},
        {"idle_timeout_s": "5"},
        {"keepalive_s": float("inf")},
        {"keepalive_timeout_s": -1.0},
    ],
)
def test_senseless_pool_is_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Pool(**options)


@pytest.mark.parametrize("argument", ["tls", "retry", "pool", "headers"])
def test_argument_of_another_type_is_refused(kind: str, address: str, argument: str) -> None:
    with pytest.raises(InvalidArgument, match=argument):
        make_client(kind, address, **{argument: 5})  # type: ignore[arg-type]


def test_error_names_the_call(timed_client: Client, address: str, server: ModelServer) -> None:
    server.failures.extend([Failure(Code.UNAVAILABLE, "loading")] * 4)
    with pytest.raises(Unavailable) as caught:
        timed_client.predict("affine", {"x": X}, version=5)
    error = caught.value
    assert error.message == "loading"
    assert error.address == address
    assert (error.model, error.attempts, error.limit_s) == ("affine version 5", 4, 30.0)
    assert str(error) == f"loading ({address}, model affine version 5, 4 attempts in 0.35 s, limit 30 s)"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (Unavailable, str(error))


def test_error_of_the_arguments_has_no_call(client: Client) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.predict("affine", {"x": X}, version=5, label="stable")
    assert (caught.value.address, caught.value.attempts) == (None, None)


def test_pickled_client_has_the_same_settings(server: ModelServer, address: str, protocol: str) -> None:
    with Client(address, headers={"x-team": "vision"}, timeout_s=7.0, pool=Pool(max_connections=3)) as client:
        client.status("affine")
        copy = pickle.loads(pickle.dumps(client))
    with copy:
        copy.status("affine")
    assert server.served[1].headers["x-team"] == "vision"
    assert copy.__getstate__() == client.__getstate__()


def test_closed_client_is_refused(client: Client) -> None:
    client.status("affine")
    client.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        client.status("affine")


def test_calls_take_turns_over_the_addresses(kind: str, protocol: str, clock: Clock) -> None:
    servers = [ModelServer(), ModelServer()]
    with (
        serving(servers[0], protocol) as one,
        serving(servers[1], protocol) as two,
        make_client(kind, f"{one},{two}", clock) as client,
    ):
        for _ in range(10):
            client.status("affine")
    assert [len(server.served) for server in servers] == [5, 5]


def test_address_that_fails_is_left_for_another_without_a_pause(kind: str, protocol: str, clock: Clock) -> None:
    server = ModelServer()
    with serving(ModelServer(), protocol) as gone:
        pass
    with serving(server, protocol) as address, make_client(kind, f"{gone},{address}", clock) as client:
        attempts = [client.status("affine") for _ in range(20)]
    assert len(attempts) == len(server.served) == 20
    assert set(clock.pauses_s) <= {0.0}
    assert len(clock.pauses_s) == 3  # then the address is ejected


def test_host_stands_for_all_its_addresses(kind: str, protocol: str) -> None:
    server = ModelServer()
    with serving(server, protocol) as address:
        named = address.replace("127.0.0.1", "localhost")
        with make_client(kind, named, resolve_all=True) as client:
            # localhost may also have ::1, where this server does not listen.
            assert client.status("affine")
    host = server.served[0].headers.get("host")
    assert host in (None, named.removeprefix("http://"))


@pytest.mark.parametrize("cold", [50])
def test_concurrent_cold_calls_share_one_metadata_request(address: str, server: ModelServer, cold: int) -> None:
    async def burst() -> list[Any]:
        async with AsyncClient(address) as client:
            calls = (client.predict("single", [[[1, 2], [3, 4]]], version=7) for _ in range(cold))
            return await asyncio.gather(*calls)

    assert [answer["sum"].tolist() for answer in asyncio.run(burst())] == [[10.0]] * cold
    assert server.methods().count("GetModelMetadata") == 1
    with Client(address) as client:
        results: list[float] = []
        threads = [
            threading.Thread(
                target=lambda: results.append(float(client.predict("single", [[[1, 2], [3, 4]]], version=7)["sum"][0]))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [10.0] * 8
    assert server.methods().count("GetModelMetadata") == 2


def test_cancelled_call_leaves_the_metadata_to_the_others(address: str, server: ModelServer) -> None:
    async def burst() -> Any:  # noqa: ANN401  a Prediction
        async with AsyncClient(address) as client:
            first = asyncio.create_task(client.predict("single", [[[1, 2], [3, 4]]]))
            second = asyncio.create_task(client.predict("single", [[[1, 2], [3, 4]]]))
            await asyncio.sleep(0)
            first.cancel()
            return await second

    assert asyncio.run(burst())["sum"].tolist() == [10.0]


def test_calls_that_wait_for_metadata_get_its_error(address: str, server: ModelServer) -> None:
    async def burst() -> list[Any]:
        async with AsyncClient(address) as client:
            calls = (client.predict("nothing", [1], retry=Retry(max_attempts=1)) for _ in range(5))
            return await asyncio.gather(*calls, return_exceptions=True)

    server.failures.append(Failure(Code.NOT_FOUND, "no such model"))
    errors = asyncio.run(burst())
    assert {type(error) for error in errors} == {NotFound}
    assert len({id(error) for error in errors}) == 5
    assert len(server.served) == 1


@pytest.mark.filterwarnings("ignore:unclosed transport", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_client_made_outside_a_loop_serves_one_loop_after_another(address: str) -> None:
    client = AsyncClient(address)

    async def call() -> list[Any]:
        return await asyncio.gather(*(client.predict("affine", {"x": X}) for _ in range(3)))

    async def close() -> None:
        await client.close()

    with collected_at_end():  # the connections of the first loops, which a closed loop cannot close
        for _ in range(3):
            assert len(asyncio.run(call())) == 3
        asyncio.run(close())
        with pytest.raises(FailedPrecondition, match="closed"):
            asyncio.run(call())


def test_more_calls_than_connections_wait_in_turn(server: ModelServer, protocol: str, address: str) -> None:
    async def burst() -> int:
        async with AsyncClient(address, pool=Pool(max_connections=2)) as client:
            return len(await asyncio.gather(*(client.predict("affine", {"x": X}) for _ in range(40))))

    assert asyncio.run(burst()) == 40


@pytest.mark.parametrize("protocol", ["rest"], indirect=True)
def test_wait_for_a_connection_ends_at_the_deadline(server: ModelServer, address: str, kind: str) -> None:
    server.gate.clear()
    errors: list[TpuserveError] = []
    with make_client("sync", address, pool=Pool(max_connections=1)) as client:
        client.metadata("affine")

        def predict() -> None:
            try:
                client.predict("affine", {"x": X}, timeout_s=0.3)
            except TpuserveError as error:
                errors.append(error)

        threads = [threading.Thread(target=predict) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.gate.set()
    assert [type(error) for error in errors] == [DeadlineExceeded] * 3
