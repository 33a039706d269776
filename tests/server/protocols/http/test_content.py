"""Tests for gzip and deflate on REST: decompressed bodies, rejected bodies, and compressed responses."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.terms.errors import Code, InvalidArgument
from tpuserve_server.protocols.http.content import (
    DEFLATE,
    GZIP,
    MAX_UNCOMPRESSED_BYTES,
    MIN_COMPRESSED_BYTES,
    Coding,
    accepted_coding,
    compress,
    decompress,
)
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.status import BodyTooLarge

PREDICT = "/v1/models/m:predict"
ROWS = b'{"instances": [1, 3]}'
LIMIT = 300_000
MEBIBYTE = 1 << 20


@pytest.fixture
def metrics() -> FakeMetrics:
    return FakeMetrics()


@pytest.fixture
async def client(metrics: FakeMetrics) -> AsyncIterator[httpx.AsyncClient]:
    app = rest_app(FakeService(), metrics, FakeClock(), lambda: ([b""], ""), RestOptions(max_body_bytes=LIMIT))
    transport = httpx.ASGITransport(app)
    # httpx requests gzip by default.
    async with httpx.AsyncClient(
        transport=transport, base_url="http://server", headers={"accept-encoding": ""}
    ) as made:
        yield made


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " x-gzip ", "deflate", "identity", ""])
async def test_bodies_may_be_compressed(client: httpx.AsyncClient, encoding: str) -> None:
    body = zlib.compress(ROWS) if encoding == "deflate" else gzip.compress(ROWS) if "zip" in encoding.lower() else ROWS
    response = await client.post(PREDICT, content=body, headers={"content-encoding": encoding})
    assert (response.status_code, response.content) == (200, b'{"predictions":[2.5,3.5]}')


async def test_large_bodies_may_be_compressed(client: httpx.AsyncClient) -> None:
    numbers = np.random.default_rng(0).random(10_000, np.float32)
    body = json.dumps({"instances": numbers.tolist()}).encode()
    response = await client.post(PREDICT, content=gzip.compress(body), headers={"content-encoding": "gzip"})
    np.testing.assert_array_equal(np.array(response.json()["predictions"], np.float32), numbers / 2 + 2)


@pytest.mark.parametrize("encoding", ["br", "deflate, gzip", "gzip, gzip", "gzip;q=1", "é"])
async def test_other_encodings_are_named_and_refused(
    client: httpx.AsyncClient, metrics: FakeMetrics, encoding: str
) -> None:
    response = await client.post(PREDICT, content=ROWS, headers=[(b"content-encoding", encoding.encode())])
    assert response.status_code == 415
    assert response.json() == {"error": f"Content-Encoding {encoding} is not supported; use gzip or deflate"}
    assert metrics.finished[0].code == Code.INVALID_ARGUMENT


async def test_encodings_in_two_headers_are_a_list(client: httpx.AsyncClient) -> None:
    headers = [(b"content-encoding", b"gzip"), (b"content-encoding", b"identity")]
    response = await client.post(PREDICT, content=gzip.compress(ROWS), headers=headers)
    assert response.status_code == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        ROWS,
        zlib.compress(ROWS),
        gzip.compress(ROWS)[:-1],
        gzip.compress(ROWS)[:12],
        gzip.compress(ROWS)[:-8] + b"\0" * 8,
        gzip.compress(ROWS) + b"\0",
        gzip.compress(ROWS) + gzip.compress(ROWS),
        gzip.compress(bytes(3 * MEBIBYTE))[:-1],
    ],
    # Explicit IDs: gzip embeds the time, and pytest-xdist fails if the IDs of two processes differ.
    ids=["empty", "plain", "zlib", "short", "head alone", "false sum", "more after it", "twice", "large and short"],
)
async def test_what_is_no_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await decompress(body, GZIP, 1 << 30)
    assert caught.value.message == "Failed to uncompress the gzipped body"


async def test_a_body_is_bounded_before_and_after_decompression(client: httpx.AsyncClient) -> None:
    just_right, too_much = (gzip.compress(ROWS + b" " * (size - len(ROWS))) for size in (LIMIT, LIMIT + 1))
    incompressible = gzip.compress(np.random.default_rng(0).bytes(LIMIT))
    statuses = [
        (await client.post(PREDICT, content=body, headers={"content-encoding": "gzip"})).status_code
        for body in (just_right, too_much, incompressible)
    ]
    assert statuses == [200, 413, 413]


async def test_upstreams_limit_holds_where_ours_is_wider() -> None:
    body = gzip.compress(bytes(MAX_UNCOMPRESSED_BYTES + 1), 1)
    with pytest.raises(BodyTooLarge, match=f"limit of {MAX_UNCOMPRESSED_BYTES} bytes"):
        await decompress(body, GZIP, 1 << 40)


async def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(256 * MEBIBYTE), 1)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            await decompress(bomb, GZIP, 4 * MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 10 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body", [b"", zlib.compress(ROWS, wbits=-15), gzip.compress(ROWS, mtime=0), zlib.compress(ROWS)[:-1]]
)
async def test_a_body_that_is_not_zlib_data_is_no_deflate(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="Failed to uncompress the deflated body"):
        await decompress(body, DEFLATE, 1 << 30)


@given(st.binary(max_size=100), st.integers(1, 40_000), st.sampled_from([GZIP, DEFLATE]))
@settings(deadline=None)
async def test_whatever_was_compressed_comes_back(unit: bytes, count: int, coding: Coding) -> None:
    body = unit * count
    assert await decompress(await compress(body, coding), coding, len(body)) == body


async def test_a_body_of_many_pieces_comes_back() -> None:
    body = np.random.default_rng(0).bytes(2 * MEBIBYTE + 3) + bytes(3 * MEBIBYTE + 1)
    assert await decompress(await compress(body, GZIP), GZIP, len(body)) == body


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("br, GZip;q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000, br", None),
        ("*", "gzip"),
        ("*;q=0", None),
        ("*;q=0, gzip", "gzip"),
        ("gzip;q=0, *", None),
        ("identity", None),
        ("x-gzipped", None),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("deflate;q=0", None),
    ],
)
async def test_responses_are_compressed_for_who_takes_it(
    client: httpx.AsyncClient, accepted: str | None, coding: str | None
) -> None:
    headers = [] if accepted is None else [(b"accept-encoding", accepted.encode())]
    found = accepted_coding({"headers": headers})
    assert (found and found.name) == coding
    body = json.dumps({"instances": [1] * 5000}).encode()
    response = await client.post(PREDICT, content=body, headers={"accept-encoding": accepted or ""})
    assert response.json() == {"predictions": [2.5] * 5000}
    assert response.headers.get("content-encoding") == coding
    assert response.headers["vary"] == "accept-encoding"
    assert (int(response.headers["content-length"]) < MIN_COMPRESSED_BYTES) == (coding is not None)


async def test_small_responses_are_left_alone(client: httpx.AsyncClient) -> None:
    response = await client.post(PREDICT, content=ROWS, headers={"accept-encoding": "gzip"})
    assert response.content == b'{"predictions":[2.5,3.5]}'
    assert not {"content-encoding", "vary"} & response.headers.keys()
