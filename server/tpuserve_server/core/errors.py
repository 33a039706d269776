"""The error tree. Every failure a caller can see is one of these.

    ServingError
    ├── Cancelled
    ├── Unknown
    ├── InvalidArgument
    ├── DeadlineExceeded
    ├── NotFound
    ├── AlreadyExists
    ├── PermissionDenied
    ├── ResourceExhausted
    │   └── TooLate
    ├── FailedPrecondition
    ├── Aborted
    ├── OutOfRange
    ├── Unimplemented
    ├── Internal
    ├── Unavailable
    ├── DataLoss
    └── Unauthenticated

Each carries a canonical code and a message fit for a client. How a code looks on gRPC and on HTTP is decided in
`frontends.status` alone.
"""

import enum
from typing import ClassVar, Self


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


class ServingError(Exception):
    """A failure with a canonical code and a message that may be shown to a client."""

    code: ClassVar[Code] = Code.UNKNOWN
    # After how many seconds the same request may be tried again; None where the server cannot say.
    retry_after_s: float | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def copy(self) -> Self:
        """An equal error that has not been raised: no traceback, whose frames would keep a request's data alive."""
        return type(self)(self.message)


class Cancelled(ServingError):
    """The caller went away before the answer was ready."""

    code = Code.CANCELLED


class Unknown(ServingError):
    """Something else went wrong on the way; the message says what."""

    code = Code.UNKNOWN


class InvalidArgument(ServingError):
    """The request can never succeed, whatever the state of the server."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(ServingError):
    """The caller's deadline passed before the answer was ready."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(ServingError):
    """No such model, version or label."""

    code = Code.NOT_FOUND


class AlreadyExists(ServingError):
    """The model would make what exists, such as a table of the same name."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(ServingError):
    """The caller is known, and may not do this."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(ServingError):
    """A limit was reached: a message too large, a quota spent."""

    code = Code.RESOURCE_EXHAUSTED


class TooLate(ResourceExhausted):
    """The answer would come later than the model's latency objective or the caller's deadline allows."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: when the queue is expected to be short enough again, in seconds from now."""
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def copy(self) -> Self:
        """As every error's."""
        assert self.retry_after_s is not None
        return type(self)(self.message, self.retry_after_s)


class FailedPrecondition(ServingError):
    """The server is not in the state that the request needs."""

    code = Code.FAILED_PRECONDITION


class Aborted(ServingError):
    """The model gave the request up, for a conflict with another. The same request may succeed."""

    code = Code.ABORTED


class OutOfRange(ServingError):
    """A value lies beyond what the model can take."""

    code = Code.OUT_OF_RANGE


class Unimplemented(ServingError):
    """The request asks for something that this server does not do."""

    code = Code.UNIMPLEMENTED


class Internal(ServingError):
    """A fault of the server or of the model; the message says no more than a client needs."""

    code = Code.INTERNAL


class Unavailable(ServingError):
    """Not now: loading, draining or overloaded. The same request may succeed later."""

    code = Code.UNAVAILABLE


class DataLoss(ServingError):
    """Data that cannot be read: a compressed input that does not decode, a file that is cut short."""

    code = Code.DATA_LOSS


class Unauthenticated(ServingError):
    """The request has no valid credentials."""

    code = Code.UNAUTHENTICATED


_ERRORS: tuple[type[ServingError], ...] = (
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
)
_ERROR_BY_CODE: dict[int, type[ServingError]] = {error.code: error for error in _ERRORS}


def error_for_code(code: int, message: str) -> ServingError:
    """The error that a library's canonical code stands for; Unknown for a number that gRPC does not define."""
    return _ERROR_BY_CODE.get(code, Unknown)(message)
