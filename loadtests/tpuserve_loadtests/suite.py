"""The users that Locust runs. Each sends one predict request after another, the next as soon as the last is answered.

Importing this imports Locust, which patches the process for gevent: see gevent_setup.
"""

import json
import time
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any, ClassVar, Final, TypeAlias

import grpc
from locust import FastHttpUser, User

from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec

# Locust ships no annotations: a user (with `environment` and, over HTTP, `client`), and a subclass of locust.User.
_User: TypeAlias = Any
UserClass: TypeAlias = type[Any]

# Reading every answer would cost the generator more than sending the request did.
CHECK_EVERY: Final = 256
MAX_MESSAGE: Final = 300
_REST_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


def grpc_users(
    channel: grpc.Channel, exchanges: tuple[Exchange, ...], spec: ModelSpec, *, users: int, timeout_s: float
) -> UserClass:
    """A Locust user class for `users` users that share one channel.

    A call fails if its status is not OK, or if an answer that was sampled (the first and every 256th) cannot be read.
    """
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(exchanges[0].path)
    bodies = cycle([exchange.body for exchange in exchanges])
    sampled = _sampled()
    question = PredictCall(spec, {})

    def ask() -> int:
        answer = call(next(bodies), timeout=timeout_s)
        if next(sampled):
            GrpcWire().read_prediction(Reply(answer), question, None)
        return len(answer)

    def predict(user: _User) -> None:
        length, error = 0, None
        start = time.perf_counter()
        try:
            length = ask()
        except Exception as caught:  # whatever went wrong is this request's outcome, not the user's end
            error = caught
        user.environment.events.request.fire(
            request_type="gRPC",
            name="grpc",
            response_time=(time.perf_counter() - start) * 1000,
            response_length=length,
            response=None,
            context={},
            exception=error,
        )

    class GrpcPredict(User):  # type: ignore[misc]  # Locust ships no annotations
        fixed_count = users
        tasks: ClassVar = [predict]

    return GrpcPredict


def rest_users(base_url: str, exchanges: tuple[Exchange, ...], *, users: int, timeout_s: float) -> UserClass:
    """A Locust user class for `users` users, each with a connection of its own. Any status but 200 is a failure."""
    path = exchanges[0].path
    bodies = cycle([exchange.body for exchange in exchanges])

    def predict(user: _User) -> None:
        user.client.post(path, data=next(bodies), headers=_REST_HEADERS, name="rest")

    class RestPredict(FastHttpUser):  # type: ignore[misc]  # Locust ships no annotations
        host = base_url
        fixed_count = users
        network_timeout = timeout_s
        connection_timeout = timeout_s
        insecure = False
        tasks: ClassVar = [predict]

    return RestPredict


def failure_message(exception: BaseException | None, response: Any) -> str | None:  # noqa: ANN401  Locust's
    """Why a request failed, as one short line; None if it did not."""
    status = getattr(response, "status_code", 0)
    if exception is None and status in (0, 200):
        return None
    if isinstance(exception, grpc.RpcError):
        return f"{exception.code().name}: {exception.details()}"[:MAX_MESSAGE]
    if status:
        return f"HTTP {status}: {_rest_error(response.content)}"[:MAX_MESSAGE]
    return f"{type(exception).__name__}: {exception}"[:MAX_MESSAGE]


def _rest_error(body: bytes | bytearray | None) -> str:
    text = bytes(body or b"").decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _sampled() -> Iterator[bool]:
    return (number % CHECK_EVERY == 0 for number in count())
