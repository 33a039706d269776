"""Clients for what the load generators cannot see: right answers, and the neighbours of a bad row and a large body."""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio
import httpx
import numpy as np
from google.protobuf.message import DecodeError

from benchmarks.harness import mlp_model
from benchmarks.harness.measurement import TOLERANCE, WrongAnswer
from benchmarks.harness.mlp_model import Floats
from benchmarks.peers.wire import Wire, bad_body
from tpuserve_client.errors import TpuserveError

TIMEOUT_S = 60.0
CHECKED = 64
ROUNDS, GOOD_A_ROUND = 31, 15
# Askers with a connection each: a server that ties connections to threads stalls only those of one of them.
ASKERS, PAUSE_S = 8, 0.01
STEADY_S, AFTERWARDS_S = 2.0, 0.5
# A server may need as long as this for a body of 99 MB; the longest seen is 25 s.
LARGE_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Good requests of one row sent at once with a bad one, over and over: how many failed; what the bad ones got."""

    good: int
    good_failed: int
    bad: int
    bad_accepted: int


@dataclass(frozen=True, slots=True)
class Stall:
    """The slowest small request before and while a large body was sent, read and answered; and the answer to that."""

    steady_worst_ms: float
    worst_ms: float
    answer: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A small request: when it began, on the monotonic clock, and how long it took. A failed one counts too."""

    started_s: float
    took_s: float


async def check_answers(wire: Wire, port: int) -> None:
    """Ask with different rows at the same time, so that they share batches; WrongAnswer unless each gets its own."""
    rows = np.random.default_rng(7).random((CHECKED, mlp_model.FEATURES), np.float32)
    bodies = [wire.encode(row[None]) for row in rows]
    try:
        answers = await (_ask_grpc if wire.protocol == "grpc" else _ask_http)(wire, port, bodies)
    except (grpc.aio.AioRpcError, httpx.HTTPError) as error:
        raise WrongAnswer(f"{wire.protocol}: {error!r}") from error
    compare(wire, rows, answers)


async def answer_size(wire: Wire, port: int) -> int:
    """The bytes of an answer over gRPC to the request that the load generator sends."""
    (answer,) = await _ask_grpc(wire, port, [wire.encode(mlp_model.example())])
    return len(answer)


def compare(wire: Wire, rows: Floats, answers: Sequence[bytes]) -> None:
    """Raise WrongAnswer unless answer i is what the model computes of row i."""
    for row, answer, expected in zip(rows, answers, mlp_model.expected(rows), strict=True):
        if not is_right(wire, row, answer):
            raise WrongAnswer(f"{wire.protocol}: expected {expected}, got {answer[:300]!r}")


def is_right(wire: Wire, row: Floats, answer: bytes) -> bool:
    """Whether the answer is what the model computes of that row, shape (64,)."""
    try:
        got = wire.decode(answer)
    except (ValueError, KeyError, TypeError, DecodeError, TpuserveError):
        return False
    expected = mlp_model.expected(row[None])
    return got.shape == expected.shape and np.allclose(got, expected, atol=TOLERANCE)


async def poison(wire: Wire, port: int) -> Poisoned:
    """Send a bad request beside good ones, over and over; a good one must get its own answer to count as fine."""
    rows = np.random.default_rng(8).random((GOOD_A_ROUND, mlp_model.FEATURES), np.float32)
    good, bad = [wire.encode(row[None]) for row in rows], bad_body(wire)
    failed = accepted = 0
    async with _http() as client:
        for turn in range(ROUNDS):
            # Not always in the same place of the batch.
            bodies = [*good[: turn % len(good)], bad, *good[turn % len(good) :]]
            # Some servers close the connection after an error: the bad one has its own, or a good one would meet that.
            replies = await asyncio.gather(*(_post(client, wire, port, body, close=body is bad) for body in bodies))
            accepted += replies.pop(turn % len(good)) is not None
            failed += sum(
                reply is None or not is_right(wire, row, reply) for row, reply in zip(rows, replies, strict=True)
            )
    return Poisoned(ROUNDS * len(good), failed, ROUNDS, accepted)


async def stall(wire: Wire, port: int, large: bytes) -> Stall:
    """Ask small requests all the time, post the large body meanwhile, and see who waited for it."""
    asked: list[Asked] = []
    begun, done = asyncio.Event(), asyncio.Event()
    async with _http() as client, asyncio.TaskGroup() as tasks:
        for _ in range(ASKERS):
            tasks.create_task(_keep_asking(client, wire, port, asked, begun, done))
        await asyncio.sleep(STEADY_S)
        # A slow machine may not have come to the first yet; what fails counts too, so that this ends.
        await begun.wait()
        sent_s = time.monotonic()
        answer = await _post_beside(wire, port, large)
        await asyncio.sleep(AFTERWARDS_S)
        done.set()
    return Stall(*worst_ms(asked, sent_s), answer)


def worst_ms(asked: Sequence[Asked], sent_s: float) -> tuple[float, float]:
    """The longest of those that were over when the large body was sent, and of the others; NaN where there is none."""
    before = [one.took_s for one in asked if one.started_s + one.took_s <= sent_s]
    during = [one.took_s for one in asked if one.started_s + one.took_s > sent_s]
    return 1000 * max(before, default=np.nan), 1000 * max(during, default=np.nan)


async def _keep_asking(
    client: httpx.AsyncClient,
    wire: Wire,
    port: int,
    asked: list[Asked],
    begun: asyncio.Event,
    done: asyncio.Event,
) -> None:
    body = wire.encode(mlp_model.example())
    # The first opens the connection.
    await _post(client, wire, port, body)
    while not done.is_set():
        started_s = time.monotonic()
        await _post(client, wire, port, body)
        asked.append(Asked(started_s, time.monotonic() - started_s))
        begun.set()
        await asyncio.sleep(PAUSE_S)


async def _post_beside(wire: Wire, port: int, body: bytes) -> str:
    """Post from a thread with a plain socket: on the event loop the sending itself would hold the small requests up."""
    answers: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def post() -> None:
        answer = _post_plainly(wire, port, body)
        loop.call_soon_threadsafe(answers.put_nowait, answer)

    thread = threading.Thread(target=post, name="large-body")
    thread.start()
    answer = await answers.get()
    thread.join()
    return answer


def _post_plainly(wire: Wire, port: int, body: bytes) -> str:
    """The status of the answer, or what came instead of one."""
    head = f"POST {wire.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LARGE_TIMEOUT_S) as connection:
            try:
                connection.sendall(head.encode())
                # Not joined to the head: copying it would hold this process's small requests up.
                connection.sendall(body)
            except ConnectionError:
                # Refused in the middle: the reason may still be there to be read.
                return _status(connection.recv(4096))
            return _status(connection.recv(4096))
    except TimeoutError:
        return f"none within {LARGE_TIMEOUT_S:.0f} s"
    except OSError:
        return "connection closed"


def _status(received: bytes) -> str:
    words = received.split(maxsplit=2)
    return words[1].decode() if len(words) > 1 else "connection closed"


async def _ask_http(wire: Wire, port: int, bodies: Sequence[bytes]) -> list[bytes]:
    async with _http() as client:
        replies = await asyncio.gather(*(_post(client, wire, port, body) for body in bodies))
    if None in replies:
        raise WrongAnswer(f"{wire.protocol}: {replies.count(None)} of {len(replies)} good requests failed")
    return [reply for reply in replies if reply is not None]


async def _ask_grpc(wire: Wire, port: int, bodies: Sequence[bytes]) -> list[bytes]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(wire.path)
        return list(await asyncio.gather(*(call(body, timeout=TIMEOUT_S) for body in bodies)))


async def _post(client: httpx.AsyncClient, wire: Wire, port: int, body: bytes, *, close: bool = False) -> bytes | None:
    """The answer of a 2xx; None for any other and for a broken connection."""
    headers = {"connection": "close"} if close else {}
    try:
        reply = await client.post(f"http://127.0.0.1:{port}{wire.path}", content=body, headers=headers)
    except httpx.HTTPError:
        return None
    return reply.content if reply.is_success else None


def _http() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=CHECKED, max_keepalive_connections=CHECKED)
    headers = {"content-type": "application/json"}
    return httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, headers=headers, trust_env=False)
