"""The error tree. Every failure that a caller can see is one of these classes.

    ServingError
    ├── Cancelled
    ├── Unknown
    ├── InvalidArgument
    ├── DeadlineExceeded
    ├── NotFound
    ├── AlreadyExists
    ├── PermissionDenied
    ├── ResourceExhausted
    │   ├── TooLarge
    │   └── TooLate
    ├── FailedPrecondition
    │   └── Quarantined
    ├── Aborted
    ├── OutOfRange
    ├── Unimplemented
    ├── Internal
    │   └── OutOfMemory
    ├── Unavailable
    │   ├── NotLoaded
    │   └── DeviceLost
    ├── DataLoss
    └── Unauthenticated

Each error has a canonical code and a message that clients may see. Only `protocols.status` maps a code to gRPC and
HTTP. The class also decides whether the load of a version that failed with it is tried again: `may_pass`.
"""

import enum
import errno
from collections.abc import Iterable
from heapq import nsmallest
from typing import ClassVar, Final, Literal, Self, TypeAlias

# Longest part of a message, and number of names in one, that come from a client.
_MOST_SHOWN: Final = 1024
_MOST_NAMES: Final = 64
# Longest message. The first half of a longer one remains, and its end.
_MOST_CHARACTERS: Final = 1 << 16


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


def shown(text: str) -> str:
    """Return a client's name or other text for messages: as it is, or the beginning of a long one and its length.

    Use it where a request is parsed if no known name is so long, and otherwise where a message is made. Long texts
    would be copied, encoded and escaped with the GIL held.
    """
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 4]}… ({len(text)} characters)"


def shown_names(names: Iterable[str], separator: str = ",") -> str:
    """Return sorted names for a message, of which a client may have sent some: the first, and how many others."""
    known = list(names)
    first = [shown(name) for name in nsmallest(_MOST_NAMES, known)]
    others = [f"… ({len(known)} names)"] if len(known) > len(first) else []
    return separator.join(first + others)


class ServingError(Exception):
    """A failure with a canonical code and a message that clients may see."""

    code: ClassVar[Code] = Code.UNKNOWN
    # Whether the cause may pass while the version's files and configuration stay as they are, so that its load is worth
    # a few retries. False: the load would fail again. An error of unknown cause may pass.
    may_pass: ClassVar[bool] = False
    # Seconds after which the client may retry, or the next try of a load, or None if unknown.
    retry_after_s: float | None = None

    def __init__(self, message: str) -> None:
        if len(message) > _MOST_CHARACTERS:
            half = _MOST_CHARACTERS // 2
            message = f"{message[:half]}… ({len(message)} characters) …{message[-half:]}"
        super().__init__(message)
        self.message = message

    def copy(self) -> Self:
        """Return an equal error without a traceback, whose frames would keep a request's data alive."""
        return self.with_message(self.message)

    def with_message(self, message: str) -> Self:
        """Return this error with another message and without a traceback."""
        return type(self)(message)


class Cancelled(ServingError):
    """The caller cancelled the request or disconnected before the response was ready."""

    code = Code.CANCELLED
    may_pass = True


class Unknown(ServingError):
    """A failure without a more specific code. The message states the cause."""

    code = Code.UNKNOWN
    may_pass = True


class InvalidArgument(ServingError):
    """The request can never succeed, whatever the state of the server."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(ServingError):
    """The caller's deadline passed before the response was ready."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(ServingError):
    """The model, version or label does not exist."""

    code = Code.NOT_FOUND


class AlreadyExists(ServingError):
    """The model tried to create something that exists, such as a table of the same name."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(ServingError):
    """The caller is authenticated but lacks the permission."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(ServingError):
    """A limit was reached, such as the size of a message or a quota."""

    code = Code.RESOURCE_EXHAUSTED
    may_pass = True


class TooLarge(ResourceExhausted):
    """The request has more bytes than the operator allows."""


class TooLate(ResourceExhausted):
    """The response would be later than the model's latency objective or the caller's deadline."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: seconds until the queue is expected to be short enough."""
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def with_message(self, message: str) -> Self:
        """Return this error with another message. See `ServingError.with_message`."""
        assert self.retry_after_s is not None
        return type(self)(message, self.retry_after_s)


class FailedPrecondition(ServingError):
    """The server is not in the state that the request needs."""

    code = Code.FAILED_PRECONDITION


class Quarantined(FailedPrecondition):
    """The version is not loaded, because loading or running it ended the process. The manager tries it again later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: seconds until the next try."""
        super().__init__(message)
        self.retry_after_s: float = retry_after_s

    def with_message(self, message: str) -> Self:
        """Return this error with another message. See `ServingError.with_message`."""
        return type(self)(message, self.retry_after_s)


class Aborted(ServingError):
    """The model aborted the request because of a conflict with another. A retry may succeed."""

    code = Code.ABORTED
    may_pass = True


class OutOfRange(ServingError):
    """A value is outside the range that the model accepts."""

    code = Code.OUT_OF_RANGE


class Unimplemented(ServingError):
    """The server does not support the request."""

    code = Code.UNIMPLEMENTED


class Internal(ServingError):
    """A fault of the server or the model. The message contains no more than a client needs."""

    code = Code.INTERNAL
    may_pass = True


class OutOfMemory(Internal):
    """The model needs more memory than the system has.

    RESOURCE_EXHAUSTED, which TensorFlow and XLA report, is 429 over HTTP: the client should send fewer requests. Here
    one request alone may fail, however long the client waits.
    """


class Unavailable(ServingError):
    """The server or the model is loading, draining or overloaded. A retry may succeed."""

    code = Code.UNAVAILABLE
    may_pass = True


class NotLoaded(Unavailable):
    """The model loads on demand, and is not in memory. A request that can wait does."""

    # Most loads take less.
    retry_after_s = 1.0


class DeviceLost(Unavailable):
    """The device no longer works, whatever the request. Another process may be able to use it again."""


class DataLoss(ServingError):
    """Data cannot be read, such as a corrupt compressed input or a truncated file."""

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


# Who has to act on a failure of a request, for the objectives.
Fault: TypeAlias = Literal["client", "server"]
# The codes of failures that are the server's fault, unless more is known of the request.
SERVER_FAULTS: Final = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)


def error_for_code(code: int, message: str) -> ServingError:
    """Return the error for a library's canonical code, or Unknown for a number that gRPC does not define."""
    return _ERROR_BY_CODE.get(code, Unknown)(message)


# Errors of the system that last until the operator changes the file or its permissions.
_LASTING: Final = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}


def file_error(subject: str, error: OSError) -> ServingError:
    """Return the error of a load for a file of the version: `SUBJECT: REASON`, without the path that only logs show.

    Other errors than those of the file itself may pass, as on a network's file system.
    """
    message = f"{subject}: {error.strerror or type(error).__name__}"
    return FailedPrecondition(message) if error.errno in _LASTING else Unavailable(message)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes a plural `s` unless the number is 1: `1 row`, `1000 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
