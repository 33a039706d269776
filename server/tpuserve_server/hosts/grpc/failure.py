"""Converts an exception from a gRPC method to a status, for both hosts."""

import logging
import math
from dataclasses import dataclass

from tpuserve_server.core.errors import Code, ServingError
from tpuserve_server.frontends.status import grpc_message

_log = logging.getLogger(__name__)

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


def failure_of(error: Exception, path: str) -> RpcFailure:
    """Return the status for an error that a method raised.

    Any error except a ServingError is a bug in the server: log it and hide it from the client.
    """
    if isinstance(error, ServingError):
        return RpcFailure(error.code, grpc_message(error.message), error.retry_after_s)
    _log.error("Unexpected error in %s", path, exc_info=error)
    return RpcFailure(Code.INTERNAL, "Internal error")
