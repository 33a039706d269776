"""The error tree. Every failure of a call is one of these errors.

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

Each canonical code has one class. Only this module maps a server's status to an error: `from_code` for gRPC,
`from_http` for REST. HTTP distinguishes fewer errors than gRPC: 400 becomes InvalidArgument, although the server may
have meant FailedPrecondition or OutOfRange.
"""

import enum
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from tpuserve_formats.counted import counted

# Advice after a call without credentials.
_NO_CREDENTIALS: Final = "The client sent no credentials. Set api_key, or tls with a client certificate."


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


@dataclass(frozen=True, slots=True)
class CallContext:
    """The call that failed. `address` is the server of the last attempt; `limit_s` is the call's timeout in seconds.

    `model` is None for a call about the whole server, and `limit_s` is None for a call without a deadline.
    `has_credentials` is True if the client sent a key, or used a client certificate.
    """

    address: str
    model: str | None
    attempts: int
    elapsed_s: float
    limit_s: float | None
    has_credentials: bool = False

    def __str__(self) -> str:
        limit = "no time limit" if self.limit_s is None else f"limit {self.limit_s:.4g} s"
        attempts = f"{counted(self.attempts, 'attempt')} in {self.elapsed_s:.3g} s"
        return ", ".join([self.address, *([f"model {self.model}"] if self.model is not None else []), attempts, limit])


class TpuserveError(Exception):
    """A failed call, with a canonical `code` and the `message` of the server or the client.

    `retry_after_s` is the server's retry hint in seconds, or None if the server sent none. `forbids_retry` is True if
    the server asked the client not to retry. `may_have_run` is True if the connection ended after the client had sent
    the request, so that the server may have executed it.

    `str()` adds the address, model, number of attempts and time limit, which are also attributes. They are None if the
    client refused the arguments before a call began. For refused credentials, `str()` also adds what to do.
    """

    code: ClassVar[Code] = Code.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        forbids_retry: bool = False,
        may_have_run: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.forbids_retry = forbids_retry
        self.may_have_run = may_have_run
        self.context: CallContext | None = None

    def __str__(self) -> str:
        if self.context is None:
            return self.message
        return ". ".join(filter(None, [f"{self.message} ({self.context})", self._advice(self.context)]))

    def _advice(self, context: CallContext) -> str:
        """Return what to do, or an empty string if the message is enough."""
        return ""

    @property
    def address(self) -> str | None:
        """Address of the server of the last attempt."""
        return None if self.context is None else self.context.address

    @property
    def model(self) -> str | None:
        """The model's name and version, if the call has one."""
        return None if self.context is None else self.context.model

    @property
    def attempts(self) -> int | None:
        """Number of requests that the client sent, or tried to send."""
        return None if self.context is None else self.context.attempts

    @property
    def limit_s(self) -> float | None:
        """The call's timeout in seconds."""
        return None if self.context is None else self.context.limit_s

    def again(self) -> Self:
        """Return an equal error without context and traceback, for another caller."""
        return type(self)(
            self.message,
            retry_after_s=self.retry_after_s,
            forbids_retry=self.forbids_retry,
            may_have_run=self.may_have_run,
        )


class Cancelled(TpuserveError):
    """The caller cancelled the call before the response arrived."""

    code = Code.CANCELLED


class Unknown(TpuserveError):
    """The server's response has no more specific code."""

    code = Code.UNKNOWN


class InvalidArgument(TpuserveError):
    """The request is invalid in every state of the server."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(TpuserveError):
    """`timeout_s` passed before the response arrived."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(TpuserveError):
    """The model, version or label does not exist."""

    code = Code.NOT_FOUND


class AlreadyExists(TpuserveError):
    """The object to create already exists."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(TpuserveError):
    """The caller lacks permission for this call: its credentials have other roles or models."""

    code = Code.PERMISSION_DENIED

    def _advice(self, context: CallContext) -> str:
        return (
            "Use credentials whose roles and models include this call." if context.has_credentials else _NO_CREDENTIALS
        )


class ResourceExhausted(TpuserveError):
    """The request exceeds a limit, such as the message size or a quota, or its response would be too late.

    The client retries only if the server sends a retry hint.
    """

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(TpuserveError):
    """The server is not in the state that the request needs."""

    code = Code.FAILED_PRECONDITION


class Aborted(TpuserveError):
    """Another operation stopped the call."""

    code = Code.ABORTED


class OutOfRange(TpuserveError):
    """The request goes past the valid range."""

    code = Code.OUT_OF_RANGE


class Unimplemented(TpuserveError):
    """The server does not support this call."""

    code = Code.UNIMPLEMENTED


class Internal(TpuserveError):
    """A fault of the server or of the model, or a malformed response."""

    code = Code.INTERNAL


class Unavailable(TpuserveError):
    """The server is unreachable, loading, draining or overloaded. The client retries."""

    code = Code.UNAVAILABLE


class DataLoss(TpuserveError):
    """Data is lost or corrupt."""

    code = Code.DATA_LOSS


class Unauthenticated(TpuserveError):
    """The request has no valid credentials. The client does not retry, except once with a new token of a function."""

    code = Code.UNAUTHENTICATED

    def _advice(self, context: CallContext) -> str:
        return "Check that the credentials are valid for this server." if context.has_credentials else _NO_CREDENTIALS


_BY_CODE: dict[int, type[TpuserveError]] = {error.code: error for error in TpuserveError.__subclasses__()}

# Reverse of TensorFlow Serving's own table (util/net_http, ToHTTPStatusCode), plus statuses that proxies send.
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
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}


# A gateway sends 502 if its connection to the server ended. The server may have executed the request.
_BAD_GATEWAY = 502


def from_code(
    code: int,
    message: str,
    *,
    retry_after_s: float | None = None,
    forbids_retry: bool = False,
    may_have_run: bool = False,
) -> TpuserveError:
    """Return the error for a gRPC status code, or Unknown for OK and for numbers that gRPC does not define."""
    kind = _BY_CODE.get(code, Unknown)
    return kind(message, retry_after_s=retry_after_s, forbids_retry=forbids_retry, may_have_run=may_have_run)


def from_http(status: int, message: str, *, retry_after_s: float | None = None) -> TpuserveError:
    """Return the error for an HTTP status other than 2xx, or Unknown for a status that the table lacks."""
    kind = _BY_HTTP_STATUS.get(status, Unknown)
    return kind(message, retry_after_s=retry_after_s, may_have_run=status == _BAD_GATEWAY)
