"""SharedPages: pages that a worker thread renders in parts, which all clients that wait read while they are made."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from tpuserve_server.core.serving.sending import ResponseCut

# Returns the parts of a page, which are made while they are read, and the content type. Blocks.
Render: TypeAlias = Callable[[], tuple[Iterable[bytes], str]]

# Most pages that clients read at the same time. A page of 400 models takes 12 MB until its last client has read it.
MOST_PAGES: Final = 8


class Page:
    """The parts of one page so far. Its event loop's thread owns it."""

    def __init__(self) -> None:
        """Start without parts."""
        self.content_type = ""
        self._parts: list[bytes] = []
        self._is_complete = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def add(self, part: bytes, content_type: str) -> None:
        """Add a part, unless the page has ended."""
        if not self._is_complete:
            self.content_type = content_type
            self._parts.append(part)
            self._wake()

    def end(self, error: BaseException | None) -> None:
        """Complete the page, or end it with an error, unless it has ended."""
        if not self._is_complete:
            self._is_complete, self._error = True, error
            self._wake()

    def cut(self) -> None:
        """Free the parts. Clients that have not read them get an error."""
        self._is_complete, self._error = True, ResponseCut("Clients have not read the page")
        self._parts.clear()
        self._wake()

    async def begun(self) -> None:
        """Wait for the first part. Raises the error of a page that ends without one."""
        while not self._parts and not self._is_complete:
            await self._changed.wait()
        if not self._parts and self._error is not None:
            raise self._error

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield all parts. Raises the error of a page that ends with one."""
        number = 0
        while True:
            while number < len(self._parts):
                yield self._parts[number]
                number += 1
            if self._is_complete:
                break
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def body(self) -> bytes:
        """Return the whole page. Raises its error."""
        return b"".join([part async for part in self.parts()])

    def _wake(self) -> None:
        # Each reader waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()


class SharedPages:
    """Renders one page at a time on a worker thread. Its event loop's thread owns it.

    However many clients wait, they occupy one worker thread. Clients that ask for the same page get the next one whose
    rendering starts after their request. It covers everything before the request. If clients read more than MOST_PAGES,
    the oldest one is cut.
    """

    def __init__(self) -> None:
        """Begin without pages."""
        self._running = asyncio.Lock()
        self._next: dict[Render, Page] = {}
        # An event loop alone does not keep its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        # Pages that a client reads or that are rendered, by number. The last reference to a page removes it.
        self._pages = WeakValueDictionary[int, Page]()
        self._numbers = itertools.count()

    async def open(self, render: Render) -> Page:
        """Return a page when its first part is there. Raises an error that occurs before."""
        page = self._next.get(render)
        if page is None:
            page = self._next[render] = self._add()
            # A client that disconnects must not cancel the page of the others.
            task = asyncio.create_task(self._run(render, page))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await page.begun()
        return page

    def _add(self) -> Page:
        page = self._pages[next(self._numbers)] = Page()
        for number in sorted(self._pages)[:-MOST_PAGES]:
            if (old := self._pages.pop(number, None)) is not None:
                old.cut()
        return page

    async def _run(self, render: Render, page: Page) -> None:
        async with self._running:
            # Later clients get a later page.
            del self._next[render]
            await asyncio.to_thread(_render, render, page, asyncio.get_running_loop())


def _render(render: Render, page: Page, loop: asyncio.AbstractEventLoop) -> None:
    error: BaseException | None = None
    try:
        parts, content_type = render()
        for part in parts:
            loop.call_soon_threadsafe(page.add, part, content_type)
    except BaseException as failure:  # the clients that read the page raise it
        error = failure
    loop.call_soon_threadsafe(page.end, error)
