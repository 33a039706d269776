"""gRPC's methods as hosts see them: bytes in, bytes out, in a table by method path. A host adds the transport."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.priority import Priority
from tpuserve_server.frontends.priority import parse_priority


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call brings beside its message. Metadata keys are lower case.

    `asked_priority` is the value of PRIORITY_HEADER, which nearly no call has: hosts find it without reading the rest.
    """

    deadline: Deadline
    metadata: Mapping[str, str]
    asked_priority: bytes | None = None

    @property
    def priority(self) -> Priority:
        """Raises InvalidArgument when the caller asks for one that there is not."""
        return parse_priority(self.asked_priority)


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One serialized request to one serialized response. Raises ServingError; cancelled by cancelling its task."""

    handle: Callable[[bytes, CallContext], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A stream of serialized requests to a stream of serialized responses; server streaming reads just one."""

    handle: Callable[[AsyncIterator[bytes], CallContext], AsyncIterator[bytes]]


# By full method path, such as "/tensorflow.serving.PredictionService/Predict".
RpcTable: TypeAlias = Mapping[str, UnaryMethod | StreamMethod]
