"""The error tree. Whatever goes wrong between a call and its answer is one of these.

    TpuserveError
    ├── Cancelled
    ├── Unknown
    ├── InvalidArgument
    ├── DeadlineExceeded
    ├── NotFound
    ├── AlreadyExists
    ├── PermissionDenied
    ├── ResourceExhausted
    ├── FailedPrecondition
    ├── Aborted
    ├── OutOfRange
    ├── Unimplemented
    ├── Internal
    ├── Unavailable
    ├── DataLoss
    └── Unauthenticated

One class for each canonical code. A server's status becomes an error here alone: `from_code` for gRPC, `from_http` for
REST. The two protocols tell the same failure apart as far as HTTP allows: 400 is InvalidArgument, though the server
may have meant FailedPrecondition or OutOfRange.
"""

import enum
from typing import ClassVar


class Code(enum.IntEnum):
    """Canonical status codes, with gRPC's names and numbers (grpc/grpc, doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class TpuserveError(Exception):
    """A call that failed, with a canonical `code` and the server's (or the client's own) `message`.

    `retry_after_s` is the server's wish, in seconds, for when to come back; None if it said nothing.
    """

    code: ClassVar[Code] = Code.UNKNOWN

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class Cancelled(TpuserveError):
    """The call was given up before its answer came."""

    code = Code.CANCELLED


class Unknown(TpuserveError):
    """The server answered with something that has no better name."""

    code = Code.UNKNOWN


class InvalidArgument(TpuserveError):
    """The request can never succeed, whatever the state of the server."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(TpuserveError):
    """`timeout_s` passed before the answer came."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(TpuserveError):
    """No such model, version or label."""

    code = Code.NOT_FOUND


class AlreadyExists(TpuserveError):
    """What was to be created is there already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(TpuserveError):
    """The caller may not do this."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(TpuserveError):
    """A limit was reached: a message too large, a quota spent, an answer that would come too late.

    Tried again only where the server says when.
    """

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(TpuserveError):
    """The server is not in the state that the request needs."""

    code = Code.FAILED_PRECONDITION


class Aborted(TpuserveError):
    """Stopped by another operation."""

    code = Code.ABORTED


class OutOfRange(TpuserveError):
    """Past the end of what there is."""

    code = Code.OUT_OF_RANGE


class Unimplemented(TpuserveError):
    """The server does not do this."""

    code = Code.UNIMPLEMENTED


class Internal(TpuserveError):
    """A fault of the server or of the model, or an answer that makes no sense."""

    code = Code.INTERNAL


class Unavailable(TpuserveError):
    """Not now: no connection, loading, draining or overloaded. Tried again."""

    code = Code.UNAVAILABLE


class DataLoss(TpuserveError):
    """Data is lost or corrupt."""

    code = Code.DATA_LOSS


class Unauthenticated(TpuserveError):
    """The server does not know who is calling."""

    code = Code.UNAUTHENTICATED


_BY_CODE: dict[int, type[TpuserveError]] = {error.code: error for error in TpuserveError.__subclasses__()}

# The reverse of TensorFlow Serving's own table (util/net_http, ToHTTPStatusCode), with what proxies add to it.
_BY_HTTP_STATUS: dict[int, type[TpuserveError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    408: DeadlineExceeded,
    409: Aborted,
    412: FailedPrecondition,
    413: ResourceExhausted,
    429: ResourceExhausted,
    499: Cancelled,
    500: Internal,
    501: Unimplemented,
    503: Unavailable,
    504: DeadlineExceeded,
}


def from_code(code: int, message: str, *, retry_after_s: float | None = None) -> TpuserveError:
    """The error for a gRPC status code; Unknown for a number that gRPC has no name for (or for OK)."""
    return _BY_CODE.get(code, Unknown)(message, retry_after_s=retry_after_s)


def from_http(status: int, message: str, *, retry_after_s: float | None = None) -> TpuserveError:
    """The error for an HTTP status that is not 2xx; Unknown for any that the table does not name."""
    return _BY_HTTP_STATUS.get(status, Unknown)(message, retry_after_s=retry_after_s)
