"""HTTP/1.1 messages with a content-length, which httpx and uvicorn send for whole bodies."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a response. `head` ends with an empty line."""

    head: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.head + self.body

    def shortened(self) -> "Message":
        """Return a valid message with the first half of the body."""
        half = self.body[: len(self.body) // 2]
        lines = [line for line in self.head.split(b"\r\n") if line and not _is_length(line)]
        return Message(b"\r\n".join([*lines, b"content-length: %d" % len(half), b"", b""]), half)


async def read_message(reader: asyncio.StreamReader, start: bytes = b"") -> Message:
    """Read one message that begins with `start`. Raises IncompleteReadError at the end of the connection."""
    head = start + await reader.readuntil(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if _is_length(line)]
    return Message(head, await reader.readexactly(lengths[0]) if lengths else b"")


def response(status: int, headers: Mapping[str, str], body: bytes) -> Message:
    """Return a whole response."""
    fields = {**headers, "content-length": str(len(body))}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return Message("\r\n".join([*lines, "", ""]).encode("ascii"), body)


def _is_length(line: bytes) -> bool:
    return line.lower().startswith(b"content-length:")
