import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.server.hosts.asgi_client import Exchange, body
from tpuserve_server.hosts.grpc.frames import FrameReader, frame


@given(st.lists(st.binary(max_size=40)), st.data())
async def test_any_messages_in_any_chunks_come_out_whole(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *cuts, len(stream)]
    chunks = [body(stream[start:end], more=True) for start, end in itertools.pairwise(edges)]
    reader = FrameReader(Exchange([*chunks, body(b"")]).receive, 1 << 20, b"identity")
    assert [await reader.next() for _ in messages] == messages
    assert await reader.next() is None
