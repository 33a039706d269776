"""Tests for requests for the metrics page: its format, and the sharing of pages."""

import asyncio
import itertools
import threading
import zlib
from collections.abc import Iterable, Iterator

import pytest

from tpuserve_server.core.serving.sending import ResponseCut
from tpuserve_server.protocols.http.content import DEFLATE, GZIP, Coding
from tpuserve_server.protocols.rest import Scrapes, prefers_open_metrics
from tpuserve_server.protocols.shared_pages import MOST_PAGES

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ('Application/OpenMetrics-Text; version="1.0.0"; charset=utf-8', True),
        ("text/plain, application/openmetrics-text", True),
        ("application/openmetrics-text;q=0.3, text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("*/*", False),
        ("", False),
        (",;=,;q=", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, is_open: bool) -> None:
    assert prefers_open_metrics(accept) is is_open


class Renderer:
    """Renders pages of two parts, each at a time that a test lets go."""

    def __init__(self) -> None:
        self.pages = 0
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.running = 0

    def render(self) -> tuple[Iterator[bytes], str]:
        return self._parts(), "text/plain"

    def render_open_metrics(self) -> tuple[Iterator[bytes], str]:
        return self._parts(), "open"

    def _parts(self) -> Iterator[bytes]:
        self.running += 1
        assert self.running == 1, "two pages at the same time"
        self.begun.release()
        self.gate.acquire()
        self.pages += 1
        yield b"page "
        self.gate.acquire()
        yield b"%d" % self.pages
        self.running -= 1


async def read(scrapes: Scrapes, accept: str) -> tuple[bytes, str]:
    page = await scrapes.page(accept)
    return await page.body(), page.content_type


async def begin(scrapes: Scrapes, count: int, accept: str = "") -> "list[asyncio.Task[tuple[bytes, str]]]":
    tasks = [asyncio.create_task(read(scrapes, accept)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_clients_that_wait_share_the_next_page() -> None:
    renderer = Renderer()
    scrapes = Scrapes(renderer.render, renderer.render_open_metrics)
    first = await begin(scrapes, 1)
    await asyncio.to_thread(renderer.begun.acquire)
    # The page under way may lack what a client has just done.
    waiting = await begin(scrapes, 50) + await begin(scrapes, 50, "application/openmetrics-text")
    for _ in range(6):
        renderer.gate.release()
    assert await first[0] == (b"page 1", "text/plain")
    assert set(await asyncio.gather(*waiting)) == {(b"page 2", "text/plain"), (b"page 3", "open")}
    assert renderer.pages == 3


async def test_a_client_reads_the_first_part_while_the_second_is_made() -> None:
    renderer = Renderer()
    scrapes = Scrapes(renderer.render, None)
    renderer.gate.release()
    parts = (await scrapes.page()).parts()
    assert await anext(parts) == b"page "
    assert renderer.running == 1
    renderer.gate.release()
    assert await anext(parts) == b"1"
    assert [part async for part in parts] == []


async def test_a_client_that_leaves_takes_no_page_from_others() -> None:
    renderer = Renderer()
    scrapes = Scrapes(renderer.render, None)
    leaving, staying = await begin(scrapes, 2, "application/openmetrics-text")
    leaving.cancel()
    for _ in range(2):
        renderer.gate.release()
    assert await staying == (b"page 1", "text/plain")
    assert leaving.cancelled()


async def test_a_page_that_fails_does_not_fail_the_next_one() -> None:
    failures = [ZeroDivisionError("a bug")]

    def render() -> tuple[Iterable[bytes], str]:
        if failures:
            raise failures.pop()
        return [b"page"], "text/plain"

    scrapes = Scrapes(render, None)
    outcomes = await asyncio.gather(*await begin(scrapes, 2), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError, ZeroDivisionError]
    assert await read(scrapes, "") == (b"page", "text/plain")


async def test_a_page_that_fails_later_raises_after_its_first_parts() -> None:
    def render() -> tuple[Iterator[bytes], str]:
        def parts() -> Iterator[bytes]:
            yield b"first"
            raise ZeroDivisionError("a bug")

        return parts(), "text/plain"

    parts = (await Scrapes(render, None).page()).parts()
    assert await anext(parts) == b"first"
    with pytest.raises(ZeroDivisionError):
        await anext(parts)


@pytest.mark.parametrize("coding", [GZIP, DEFLATE])
async def test_a_compressed_page_is_one_document_of_few_parts(coding: Coding) -> None:
    lines = [f"line {number}\n".encode() * 100 for number in range(1000)]
    scrapes = Scrapes(lambda: (iter(lines), "text/plain"), None)
    page = await scrapes.page("", coding)
    assert page.content_type == "text/plain"
    parts = [part async for part in page.parts()]
    assert zlib.decompress(b"".join(parts), coding.wbits) == b"".join(lines)
    assert len(parts) < 3


async def test_clients_share_a_page_of_one_coding() -> None:
    pages = itertools.count(1)
    scrapes = Scrapes(lambda: ([b"page %d" % next(pages)], "text/plain"), None)
    plain, same, zipped = await asyncio.gather(scrapes.page(), scrapes.page(), scrapes.page("", GZIP))
    assert await plain.body() == await same.body() == b"page 1"
    assert zlib.decompress(await zipped.body(), GZIP.wbits) == b"page 2"


async def test_clients_that_never_read_keep_few_pages() -> None:
    scrapes = Scrapes(lambda: ([b"first", b"second"], "text/plain"), None)
    unread = [(await scrapes.page()).parts() for _ in range(MOST_PAGES)]
    assert [await anext(parts) for parts in unread] == [b"first"] * MOST_PAGES
    newest = await scrapes.page()
    with pytest.raises(ResponseCut):
        await anext(unread[0])
    assert await anext(unread[1]) == b"second"
    assert await newest.body() == b"firstsecond"


async def test_pages_that_were_read_cut_no_other() -> None:
    scrapes = Scrapes(lambda: ([b"first", b"second"], "text/plain"), None)
    slow = (await scrapes.page()).parts()
    assert await anext(slow) == b"first"
    for _ in range(2 * MOST_PAGES):
        assert await read(scrapes, "") == (b"firstsecond", "text/plain")
    assert await anext(slow) == b"second"
