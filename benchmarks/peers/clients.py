"""Clients for checks that the load generators cannot do: correct outputs, and the effects of a bad row and a large
body.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio
import httpx
import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.measurement import TOLERANCE, WrongAnswer
from benchmarks.harness.mlp_model import Floats
from benchmarks.peers.wire import Wire, bad_body
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Reply

TIMEOUT_S = 60.0
CHECKED = 64
ROUNDS, GOOD_A_ROUND = 31, 15
# Several clients with one connection each: a server with one thread per connection stalls only some of them.
SMALL_CLIENTS, PAUSE_S = 8, 0.01
STEADY_S, AFTERWARDS_S = 2.0, 0.5
# Timeout for a body of 99 MB. The longest time measured is 25 s.
LARGE_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Good one-row requests sent together with a bad one, in rounds: good failures, and accepted bad requests."""

    good: int
    good_failed: int
    bad: int
    bad_accepted: int


@dataclass(frozen=True, slots=True)
class Stall:
    """The slowest small request before a large body and during it, and the response to the large body."""

    steady_worst_ms: float
    worst_ms: float
    answer: str


@dataclass(frozen=True, slots=True)
class SmallRequest:
    """A small request: its start on the monotonic clock, and its duration. Includes failed requests."""

    started_s: float
    took_s: float


async def check_answers(wire: Wire, port: int) -> None:
    """Send different rows concurrently, so that they share batches. Raises WrongAnswer if outputs are mixed up."""
    rows = np.random.default_rng(7).random((CHECKED, mlp_model.FEATURES), np.float32)
    bodies = [wire.encode(row[None]) for row in rows]
    try:
        answers = await (_send_grpc if wire.protocol == "grpc" else _send_http)(wire, port, bodies)
    except (grpc.aio.AioRpcError, httpx.HTTPError) as error:
        raise WrongAnswer(f"{wire.title}: {error!r}") from error
    compare(wire, rows, answers)


async def answer_size(wire: Wire, port: int) -> int:
    """Return the size in bytes of a gRPC response to the load generator's request."""
    (answer,) = await _send_grpc(wire, port, [wire.encode(mlp_model.example())])
    return len(answer.body)


def compare(wire: Wire, rows: Floats, answers: Sequence[Reply]) -> None:
    """Raise WrongAnswer unless answer i is the model's output for row i."""
    for row, answer, expected in zip(rows, answers, mlp_model.expected(rows), strict=True):
        if not is_right(wire, row, answer):
            raise WrongAnswer(f"{wire.title}: expected {expected}, got {answer.body[:300]!r}")


def is_right(wire: Wire, row: Floats, answer: Reply) -> bool:
    """Return whether the response is the model's output for that row, shape (64,)."""
    try:
        got = wire.decode(answer)
    except (ValueError, KeyError, TypeError, TpuserveError):
        return False
    expected = mlp_model.expected(row[None])
    return got.shape == expected.shape and np.allclose(got, expected, atol=TOLERANCE)


async def poison(wire: Wire, port: int) -> Poisoned:
    """Send a bad request together with good ones, in many rounds. A good one must get its own output to count as
    successful.
    """
    rows = np.random.default_rng(8).random((GOOD_A_ROUND, mlp_model.FEATURES), np.float32)
    good, bad = [wire.encode(row[None]) for row in rows], bad_body(wire)
    failed = accepted = 0
    async with _http() as client:
        for turn in range(ROUNDS):
            # Vary the position in the batch.
            bodies = [*good[: turn % len(good)], bad, *good[turn % len(good) :]]
            # Some servers close the connection after an error, so the bad request uses its own.
            replies = await asyncio.gather(*(_post(client, wire, port, body, close=body is bad) for body in bodies))
            accepted += replies.pop(turn % len(good)) is not None
            failed += sum(
                reply is None or not is_right(wire, row, reply) for row, reply in zip(rows, replies, strict=True)
            )
    return Poisoned(ROUNDS * len(good), failed, ROUNDS, accepted)


async def stall(wire: Wire, port: int, large: bytes) -> Stall:
    """Send small requests continuously, post the large body meanwhile, and measure their delay."""
    requests: list[SmallRequest] = []
    responded, done = asyncio.Event(), asyncio.Event()
    async with _http() as client, asyncio.TaskGroup() as tasks:
        for _ in range(SMALL_CLIENTS):
            tasks.create_task(_send_small_requests(client, wire, port, requests, responded, done))
        await asyncio.sleep(STEADY_S)
        # On a slow machine the first request may not have ended yet. Failures count too, so the wait ends.
        await responded.wait()
        sent_s = time.monotonic()
        answer = await _post_in_thread(wire, port, large)
        await asyncio.sleep(AFTERWARDS_S)
        done.set()
    return Stall(*worst_ms(requests, sent_s), answer)


def worst_ms(requests: Sequence[SmallRequest], sent_s: float) -> tuple[float, float]:
    """Return the longest duration of requests that ended before the large body was sent, and of the others, or NaN."""
    before = [one.took_s for one in requests if one.started_s + one.took_s <= sent_s]
    during = [one.took_s for one in requests if one.started_s + one.took_s > sent_s]
    return 1000 * max(before, default=np.nan), 1000 * max(during, default=np.nan)


async def _send_small_requests(
    client: httpx.AsyncClient,
    wire: Wire,
    port: int,
    requests: list[SmallRequest],
    responded: asyncio.Event,
    done: asyncio.Event,
) -> None:
    body = wire.encode(mlp_model.example())
    # The first request opens the connection.
    await _post(client, wire, port, body)
    while not done.is_set():
        started_s = time.monotonic()
        await _post(client, wire, port, body)
        requests.append(SmallRequest(started_s, time.monotonic() - started_s))
        responded.set()
        await asyncio.sleep(PAUSE_S)


async def _post_in_thread(wire: Wire, port: int, body: bytes) -> str:
    """Post from a thread with a plain socket. On the event loop, sending would delay the small requests."""
    answers: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def post() -> None:
        answer = _post_on_socket(wire, port, body)
        loop.call_soon_threadsafe(answers.put_nowait, answer)

    thread = threading.Thread(target=post, name="large-body")
    thread.start()
    answer = await answers.get()
    thread.join()
    return answer


def _post_on_socket(wire: Wire, port: int, body: bytes) -> str:
    """Return the status of the response, or a description of the failure."""
    head = f"POST {wire.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LARGE_TIMEOUT_S) as connection:
            try:
                connection.sendall(head.encode())
                # Sent separately, because joining it to the head would copy it and delay the small requests.
                connection.sendall(body)
            except ConnectionError:
                # The server refused the body early. Its response may still be readable.
                return _status(connection.recv(4096))
            return _status(connection.recv(4096))
    except TimeoutError:
        return f"no response within {LARGE_TIMEOUT_S:.0f} s"
    except OSError:
        return "connection closed"


def _status(received: bytes) -> str:
    words = received.split(maxsplit=2)
    return words[1].decode() if len(words) > 1 else "connection closed"


async def _send_http(wire: Wire, port: int, bodies: Sequence[bytes]) -> list[Reply]:
    async with _http() as client:
        replies = await asyncio.gather(*(_post(client, wire, port, body) for body in bodies))
    if None in replies:
        raise WrongAnswer(f"{wire.title}: {replies.count(None)} of {len(replies)} valid requests failed")
    return [reply for reply in replies if reply is not None]


async def _send_grpc(wire: Wire, port: int, bodies: Sequence[bytes]) -> list[Reply]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(wire.path)
        return [Reply(answer) for answer in await asyncio.gather(*(call(body, timeout=TIMEOUT_S) for body in bodies))]


async def _post(client: httpx.AsyncClient, wire: Wire, port: int, body: bytes, *, close: bool = False) -> Reply | None:
    """Return the response, or None for a status other than 2xx and for a broken connection."""
    headers = {**wire.headers, "connection": "close"} if close else wire.headers
    try:
        reply = await client.post(f"http://127.0.0.1:{port}{wire.path}", content=body, headers=headers)
    except httpx.HTTPError:
        return None
    return Reply(reply.content, dict(reply.headers)) if reply.is_success else None


def _http() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=CHECKED, max_keepalive_connections=CHECKED)
    return httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)
