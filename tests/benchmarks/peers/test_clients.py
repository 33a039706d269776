import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from benchmarks.harness import mlp_model
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.peers import clients as peer_clients
from benchmarks.peers.clients import SmallRequest, check_answers, poison, stall, worst_ms
from benchmarks.peers.wire import ROW_REST, WIRES, Wire
from tpuserve_client.exchange import Reply

Answer = Callable[[bytes], Awaitable[tuple[int, object]]]


@contextlib.asynccontextmanager
async def http_server(answer: Answer) -> AsyncIterator[int]:
    """Serve `answer` on a free port and yield the port.

    `answer` receives the body of each POST and returns the status and the JSON document of the response.
    """

    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                status, document = await answer(await reader.readexactly(length))
                body = json.dumps(document).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # The clients have closed their connections, so each task ends without cancellation.
        await asyncio.gather(*connections)


def computed(body: bytes) -> list[float] | None:
    """Return the model's output for a row of the right length, else None."""
    row = np.asarray(json.loads(body)["x"], np.float32)
    return mlp_model.expected(row[None])[0].tolist() if len(row) == mlp_model.FEATURES else None


async def right(body: bytes) -> tuple[int, object]:
    y = computed(body)
    return (400, {}) if y is None else (200, {"y": y})


async def test_right_answers_pass() -> None:
    async with http_server(right) as port:
        await check_answers(ROW_REST, port)


async def test_an_answer_of_another_row_is_noticed() -> None:
    async def same_for_all(body: bytes) -> tuple[int, object]:
        return 200, {"y": mlp_model.expected(mlp_model.example())[0].tolist()}

    async with http_server(same_for_all) as port:
        with pytest.raises(WrongAnswer, match="HTTP, JSON: expected"):
            await check_answers(ROW_REST, port)


@pytest.mark.parametrize("wire", list(WIRES.values()))
def test_an_answer_that_is_no_answer_is_not_right(wire: Wire) -> None:
    for answer in (b"", b"{}", b"\xff\xff\xff", b'{"y": null}'):
        assert not peer_clients.is_right(wire, mlp_model.example()[0], Reply(answer))


async def test_errors_and_a_closed_port_are_wrong_answers() -> None:
    async def refused(body: bytes) -> tuple[int, object]:
        return 503, {}

    async with http_server(refused) as port:
        with pytest.raises(WrongAnswer, match="64 of 64 valid requests failed"):
            await check_answers(ROW_REST, port)
    with pytest.raises(WrongAnswer):
        await check_answers(ROW_REST, port)


async def test_poison_counts_good_rows_that_fail_and_bad_ones_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_clients, "ROUNDS", 4)
    async with http_server(right) as port:
        found = await poison(ROW_REST, port)
    assert (found.good, found.good_failed, found.bad, found.bad_accepted) == (60, 0, 4, 0)

    async def a_batch_for_all(body: bytes) -> tuple[int, object]:
        # Simulate a server that fails the whole batch because of a bad row and accepts the bad row itself.
        return (200, {"y": []}) if computed(body) is None else (500, {})

    async with http_server(a_batch_for_all) as port:
        found = await poison(ROW_REST, port)
    assert (found.good_failed, found.bad_accepted) == (60, 4)


async def test_stall_reports_the_response_to_the_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_clients, "STEADY_S", 1.0)  # long enough for at least one response
    monkeypatch.setattr(peer_clients, "AFTERWARDS_S", 0.1)

    async def too_large(body: bytes) -> tuple[int, object]:
        return (413, {}) if len(body) > 10_000 else await right(body)

    async with http_server(too_large) as port:
        found = await stall(ROW_REST, port, b"[" * 100_000)
    assert found.answer == "413"
    assert found.worst_ms > 0
    assert found.steady_worst_ms > 0


async def test_stall_reports_a_server_that_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_clients, "STEADY_S", 0.1)
    monkeypatch.setattr(peer_clients, "AFTERWARDS_S", 0.1)

    async def hang_up(body: bytes) -> tuple[int, object]:
        if len(body) > 10_000:
            raise ConnectionError
        return await right(body)

    async with http_server(hang_up) as port:
        found = await stall(ROW_REST, port, b"[" * 100_000)
    assert found.answer == "connection closed"


def test_requests_under_way_when_the_large_body_comes_count_as_beside_it() -> None:
    requests = [SmallRequest(0.0, 0.010), SmallRequest(0.1, 0.020), SmallRequest(0.19, 0.5), SmallRequest(0.3, 0.030)]
    steady, worst = worst_ms(requests, sent_s=0.2)
    assert (steady, worst) == (20.0, 500.0)
    assert all(map(math.isnan, worst_ms([], sent_s=0.2)))
