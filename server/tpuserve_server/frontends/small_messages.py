"""Limit on messages of methods other than inference. The event loop parses them in one step."""

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Final

from tpuserve_server.core.errors import ResourceExhausted
from tpuserve_server.frontends.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod

# A megabyte of empty fields takes about 30 ms.
MAX_SMALL_BYTES: Final = 1 << 20


def limit_messages(table: RpcTable, large: Collection[str]) -> RpcTable:
    """Return a table whose methods take only small messages, except the `large` ones, by path."""
    return {path: method if path in large else _limited(method) for path, method in table.items()}


def _limited(method: UnaryMethod | StreamMethod) -> UnaryMethod | StreamMethod:
    if isinstance(method, StreamMethod):
        stream = method.handle
        return replace(
            method,
            handle=lambda messages, context: stream(_checked(messages), context),
            max_message_bytes=MAX_SMALL_BYTES,
        )

    async def handle(body: bytes, context: CallContext) -> bytes:
        _check(body)
        return await method.handle(body, context)

    # Clients without a credential may call some of these methods, so hosts should not hold a large message of one.
    return replace(method, handle=handle, max_message_bytes=MAX_SMALL_BYTES)


async def _checked(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for message in messages:
        _check(message)
        yield message


def _check(message: bytes) -> None:
    if len(message) > MAX_SMALL_BYTES:
        raise ResourceExhausted(f"Messages of this method may have at most {MAX_SMALL_BYTES} bytes; was {len(message)}")
