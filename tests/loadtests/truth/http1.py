"""REST side of the scripted server: HTTP/1.1 with persistent connections."""

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Final

from tests.loadtests.truth import answers, oip_answers
from tests.loadtests.truth.desk import Desk, Request, end_pending
from tests.loadtests.truth.script import Fault, Script, Wrong, spoiled

if TYPE_CHECKING:
    from tests.loadtests.truth.request_log import Entry

_PREDICT: Final = re.compile(r"/v1/models/([^/:]+)(?:/versions/\d+)?:predict")
_INFER: Final = re.compile(r"/v2/models/([^/:]+)(?:/versions/\d+)?/infer")
_OIP_METADATA: Final = re.compile(r"/v2/models/([^/:]+)(?:/versions/\d+)?")
_METADATA: Final = re.compile(r"/v1/models/([^/:]+)(?:/versions/\d+)?/metadata")
_STATUS: Final = re.compile(r"/v1/models/[^/:]+(?:/versions/\d+)?")
_PAGES: Final = ("/metrics", "/monitoring/prometheus/metrics")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEADER_LENGTH: Final = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
_CODES: Final = {Fault.UNAVAILABLE: 503, Fault.INTERNAL: 500, Fault.EXHAUSTED: 429}


class RestConnection(asyncio.Protocol):
    """A connection. Clients send the next request after the response."""

    def __init__(self, number: int, desk: Desk, script: Script) -> None:
        self._number, self._desk, self._script = number, desk, script
        self._buffer = bytearray()
        self._entries: list[Entry] = []
        self._responses = 0
        self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Log that the client left."""
        end_pending(self._entries, "abandoned")

    def data_received(self, data: bytes) -> None:
        """Read requests."""
        now_s = time.monotonic()
        self._buffer += data
        while (head := self._buffer.find(_END)) >= 0:
            found = _LENGTH.search(self._buffer, 0, head)
            end = head + len(_END) + (int(found[1]) if found else 0)
            if len(self._buffer) < end:
                return
            line, body = bytes(self._buffer[:head]).split(b"\r\n", 1)[0], bytes(self._buffer[head + len(_END) : end])
            header = _HEADER_LENGTH.search(self._buffer, 0, head)
            header_length = int(header[1]) if header else 0
            del self._buffer[:end]
            self._take(line.split(b" ")[1].decode(), (body, header_length), now_s)

    def _take(self, path: str, request: Request, now_s: float) -> None:
        if (found := _PREDICT.fullmatch(path)) is not None:
            self._predict("rest", found[1], request, now_s)
        elif (found := _INFER.fullmatch(path)) is not None:
            self._predict("oip_http" if request[1] else "oip_json", found[1], request, now_s)
        elif (found := _OIP_METADATA.fullmatch(path)) is not None:
            self._send(200, oip_answers.http_metadata(found[1]))
        elif (found := _METADATA.fullmatch(path)) is not None:
            self._send(200, answers.rest_metadata(found[1]))
        elif _STATUS.fullmatch(path):
            self._send(200, answers.rest_status())
        elif path in _PAGES:
            page = (
                f"tpuserve_requests_total 1\nprocess_resident_memory_bytes {self._desk.memory_bytes()}\n"
                'tpuserve_version_state{state="AVAILABLE"} 1\n'
                f"scripted_predictions {len(self._desk.entries)}\n"
            )
            for (model, outcome), count in self._desk.cached.items():
                page += f'tpuserve_response_cache_{outcome}_total{{model_name="{model}",version="1"}} {count}\n'
            self._send(200, page.encode(), "text/plain")
        else:
            self._send(404, json.dumps({"error": f"no {path}"}).encode())

    def _predict(self, protocol: str, model: str, request: Request, now_s: float) -> None:
        if not answers.has_json_inputs(*request):  # the check of credentials before a load
            self._send(400, b'{"error": "no inputs"}')
            return
        latest = self._desk.latest
        other, latest[model, protocol] = latest.get((model, protocol), request), request

        def reply(outcome: Fault | Wrong | None) -> None:
            if outcome in _CODES:
                self._send(_CODES[Fault(outcome)], json.dumps({"error": f"scripted: {outcome}"}).encode())
            elif outcome in (Fault.CUT, Fault.RESET, Fault.REFUSED):
                self._close()
            elif outcome is Fault.TORN:
                self._respond(protocol, request, None, torn=True)
            elif outcome is Wrong.SWAPPED:
                self._respond(protocol, other, None)
            else:
                self._respond(protocol, request, Wrong(outcome) if outcome else None)

        entry = self._desk.accept(protocol, model, self._number, now_s, request[0], reply)
        if self._is_closing:
            end_pending([entry], Fault.CUT)
        self._entries = [entry]

    def _respond(self, protocol: str, request: Request, wrong: Wrong | None, *, torn: bool = False) -> None:
        if protocol == "rest":
            body, length = answers.rest_answer(request[0], wrong), 0
        else:
            body, length = oip_answers.http_answer(*request, wrong)
        page = spoiled(wrong, body) if wrong else None
        if page is not None:
            self._send(200, page, "text/html" if wrong is Wrong.HTML else "application/json")
            return
        kind = (
            f"application/octet-stream\r\ninference-header-content-length: {length}" if length else "application/json"
        )
        self._send(200, body, kind, torn=torn)

    def _send(self, status: int, body: bytes, kind: str = "application/json", *, torn: bool = False) -> None:
        self._responses += 1
        # Without the header, a client that sends at once cannot know that the connection ends.
        is_last = bool(self._script.eject_every) and self._responses >= self._script.eject_every
        last = "connection: close\r\n" if is_last else ""
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\n{last}content-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + (body[: len(body) // 2] if torn else body))
        if torn or is_last:
            self._close()

    def _close(self) -> None:
        """End the connection for the client, but read on, so that the log has every request that it sent."""
        if not self._is_closing:
            self._is_closing = True
            self._transport.write_eof()
