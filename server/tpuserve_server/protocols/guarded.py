"""gRPC methods behind the guard, as hosts see them. A host gets the handler of a method only by admitting a call.

An admission needs the path, the metadata and the client of a call, so it comes before the message. A host that forgets
the admission has no handler to run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tpuserve_server.access.access import Access
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod

UnaryHandler: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], CallContext], AsyncIterator[bytes]]
_Handler = TypeVar("_Handler")


@dataclass(frozen=True, slots=True)
class GuardedUnary:
    """A UnaryMethod behind the guard.

    A host calls `admit` once for each call, before it reads the message or allocates memory for it. The host then runs
    the returned handler in the same task and with the same context. `admit` raises ServingError for a refused call, and
    the host must not read the message of that call. An admission must not wait for the client, which may have left.
    """

    admit: Callable[[CallContext], Awaitable[UnaryHandler]]
    access: Access
    max_message_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GuardedStream:
    """A StreamMethod behind the guard. `admit` is as for GuardedUnary, before the first message."""

    admit: Callable[[CallContext], Awaitable[StreamHandler]]
    access: Access
    max_message_bytes: int | None = None


GuardedMethod: TypeAlias = GuardedUnary | GuardedStream
# Guarded methods by full path.
GuardedTable: TypeAlias = Mapping[str, GuardedMethod]


def admit_every_call(table: RpcTable) -> GuardedTable:
    """Return a table that admits every call, for a server without a rule."""
    return {path: _open(method) for path, method in table.items()}


def _open(method: UnaryMethod | StreamMethod) -> GuardedMethod:
    if isinstance(method, UnaryMethod):
        return GuardedUnary(_admitting(method.handle), method.access, method.max_message_bytes)
    return GuardedStream(_admitting(method.handle), method.access, method.max_message_bytes)


def _admitting(handler: _Handler) -> Callable[[CallContext], Awaitable[_Handler]]:
    async def admit(_context: CallContext) -> _Handler:
        return handler

    return admit
