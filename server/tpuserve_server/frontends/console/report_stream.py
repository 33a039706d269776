"""ReportStream: a response with a report page, read piece by piece as the client takes it."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from tpuserve_server.frontends.console.report_files import OpenReport

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

# The memory of a response.
_PIECE_BYTES: Final = 1 << 18


class ReportStream(Response):
    """Sends an open report, and closes it."""

    def __init__(self, report: OpenReport, headers: Mapping[str, str]) -> None:
        """Take over `report`."""
        length = {"content-length": str(report.size_bytes), "content-type": "text/html; charset=utf-8"}
        super().__init__(headers={**headers, **length})
        self._report = report

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send the response. Raises EOFError if the file has become shorter."""
        with self._report.file as file:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            left_bytes = self._report.size_bytes
            while left_bytes:
                piece = await asyncio.to_thread(file.read, min(left_bytes, _PIECE_BYTES))
                if not piece:
                    raise EOFError("A report became shorter while a client read it")
                left_bytes -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
