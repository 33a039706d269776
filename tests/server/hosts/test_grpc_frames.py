import itertools
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.hosts.asgi_client import Exchange, body
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.system.byte_parts import PART_BYTES, FindContents
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Internal, ResourceExhausted
from tpuserve_server.hosts.grpc_frames import FrameReader, frame, whole_message

RECEIVING = partial(ReceivingBudget(1 << 20, 1 << 20, SystemClock()).begin, None)


@given(st.lists(st.binary(max_size=40)), st.data())
async def test_any_messages_in_any_chunks_come_out_whole(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *cuts, len(stream)]
    chunks = [body(stream[start:end], more=True) for start, end in itertools.pairwise(edges)]
    reader = FrameReader(Exchange([*chunks, body(b"")]).receive, 1 << 20, b"identity", RECEIVING)
    assert [await reader.next() for _ in messages] == messages
    assert await reader.next() is None


async def test_messages_that_are_still_arriving_are_charged_and_returned() -> None:
    receiving = ReceivingBudget(100, 100, SystemClock())
    whole = frame(b"x" * 60)
    reader = FrameReader(
        Exchange([body(whole[:30], more=True), body(whole[30:], more=True), body(b"")]).receive,
        1 << 20,
        b"identity",
        partial(receiving.begin, None),
    )
    assert await reader.next() == b"x" * 60
    assert receiving.held_bytes == 0


async def test_a_message_over_the_budget_is_refused_while_it_arrives() -> None:
    receiving = ReceivingBudget(100, 100, SystemClock())
    pieces = [body(b"\0\0\0\1\0" + bytes(40), more=True), *[body(bytes(40), more=True)] * 6]
    reader = FrameReader(Exchange(pieces).receive, 1 << 20, b"identity", partial(receiving.begin, None))
    with pytest.raises(ResourceExhausted, match="max_receiving_bytes"):
        await reader.only()
    assert receiving.held_bytes == 0


@pytest.mark.parametrize("find_contents", [None, lambda _head: 117])
@pytest.mark.parametrize("size_bytes", [PART_BYTES + 1, 5 * PART_BYTES])
async def test_a_large_message_and_the_one_behind_it_come_out_whole(
    size_bytes: int, find_contents: FindContents | None
) -> None:
    large = random.Random(0).randbytes(size_bytes)
    stream = frame(large) + frame(b"next")
    cuts = [0, 3, 100, PART_BYTES, size_bytes + 2, size_bytes + 9, len(stream)]
    chunks = [body(stream[start:end], more=True) for start, end in itertools.pairwise(cuts)]
    receiving = ReceivingBudget(2 * size_bytes, 2 * size_bytes, SystemClock())
    reader = FrameReader(
        Exchange([*chunks, body(b"")]).receive, size_bytes, b"identity", partial(receiving.begin, None), find_contents
    )
    assert await reader.next() == large
    assert await reader.next() == b"next"
    assert await reader.next() is None
    assert receiving.held_bytes == 0


async def test_a_body_that_ends_inside_a_large_message_is_an_error() -> None:
    whole = frame(bytes(2 * PART_BYTES))
    receiving = ReceivingBudget(len(whole), len(whole), SystemClock())
    pieces = [body(whole[:-1], more=True), body(b"")]
    reader = FrameReader(Exchange(pieces).receive, len(whole), b"identity", partial(receiving.begin, None))
    with pytest.raises(Internal, match="ended inside a message"):
        await reader.next()
    reader.close()
    assert receiving.held_bytes == 0


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        pytest.param({"type": "http.request", "body": frame(b"hello")}, b"hello", id="a whole message"),
        pytest.param({"type": "http.request", "body": frame(b"")}, b"", id="an empty message"),
        pytest.param({"type": "http.request", "body": frame(b"hello!")}, None, id="above the limit"),
        pytest.param({"type": "http.request", "body": frame(b"hello")[:-1]}, None, id="a part of a message"),
        pytest.param({"type": "http.request", "body": frame(b"a") + frame(b"b")}, None, id="two messages"),
        pytest.param({"type": "http.request", "body": b"\1" + frame(b"hello")[1:]}, None, id="compressed"),
        pytest.param({"type": "http.request", "body": b"\0\0"}, None, id="a part of a prefix"),
        pytest.param({"type": "http.request"}, None, id="no body"),
        pytest.param({"type": "http.disconnect"}, None, id="gone"),
    ],
)
def test_one_uncompressed_message_in_one_chunk_needs_no_reader(
    chunk: "dict[str, object]", expected: bytes | None
) -> None:
    assert whole_message(chunk, 5) == expected
