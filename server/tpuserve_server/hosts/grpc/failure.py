"""Converts an exception from a gRPC method to a status."""

import math
from dataclasses import dataclass

from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.protocols.internal_error import log_internal
from tpuserve_server.protocols.rpc import Trailers
from tpuserve_server.protocols.status import grpc_message

# Trailing metadata with the delay before a retry (gRPC proposal A6, client retries).
PUSHBACK = "grpc-retry-pushback-ms"
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """A status other than OK."""

    code: Code
    message: str
    # Delay before a retry of the call. None if unknown.
    retry_after_s: float | None = None

    @property
    def pushback_ms(self) -> int | None:
        """The value of PUSHBACK in whole milliseconds, at least 1, or None."""
        return None if self.retry_after_s is None else pushback_ms(self.retry_after_s)


def pushback_ms(retry_after_s: float) -> int:
    """Return the value of PUSHBACK in whole milliseconds, at least 1."""
    return min(max(math.ceil(retry_after_s * 1000), 1), _MAX_INT32)


SHUTTING_DOWN = RpcFailure(Code.UNAVAILABLE, "The server is shutting down")


def unknown_method(path: str) -> RpcFailure:
    """Return the status for a path that is not in the table."""
    return RpcFailure(Code.UNIMPLEMENTED, f"Unknown method {path}")


def failure_of(error: Exception, path: str, trailers: Trailers) -> RpcFailure:
    """Return the status for an error that a method raised. An internal error gets a request id among `trailers`.

    Any error except a ServingError is a bug in the server: log it and hide it from the client.
    """
    if isinstance(error, ServingError):
        if error.code is Code.INTERNAL:
            log_internal(error, path, trailers)
        return RpcFailure(error.code, grpc_message(error.message), error.retry_after_s)
    log_internal(error, path, trailers)
    return RpcFailure(Code.INTERNAL, "Internal error")
