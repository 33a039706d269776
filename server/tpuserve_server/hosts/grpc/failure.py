"""What an exception from a gRPC method becomes on the wire, on either host."""

import logging
import math
from dataclasses import dataclass

from tpuserve_server.core.errors import Code, ServingError
from tpuserve_server.frontends.status import grpc_message

_log = logging.getLogger(__name__)

# Trailing metadata by which a server says when to try again (gRPC proposal A6, client retries).
PUSHBACK = "grpc-retry-pushback-ms"
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """A status other than OK."""

    code: Code
    message: str
    # When the call may be tried again; None where nobody can say.
    retry_after_s: float | None = None

    @property
    def pushback_ms(self) -> int | None:
        """The value of PUSHBACK, in whole milliseconds, at least one."""
        if self.retry_after_s is None:
            return None
        return min(max(math.ceil(self.retry_after_s * 1000), 1), _MAX_INT32)


SHUTTING_DOWN = RpcFailure(Code.UNAVAILABLE, "The server is shutting down")


def unknown_method(path: str) -> RpcFailure:
    """For a path that is not in the table."""
    return RpcFailure(Code.UNIMPLEMENTED, f"Unknown method {path}")


def failure_of(error: Exception, path: str) -> RpcFailure:
    """The status for what a method raised. Anything but a ServingError is our fault: logged here, hidden outside."""
    if isinstance(error, ServingError):
        return RpcFailure(error.code, grpc_message(error.message), error.retry_after_s)
    _log.error("Unexpected error in %s", path, exc_info=error)
    return RpcFailure(Code.INTERNAL, "Internal error")
