"""gRPC's methods as hosts see them: bytes in, bytes out, in a table by method path. A host adds the transport."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.deadline import Deadline


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call brings beside its message. Metadata keys are lower case."""

    deadline: Deadline
    metadata: Mapping[str, str]


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
