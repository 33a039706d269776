"""What an exception from a gRPC method becomes on the wire, on either host."""

import logging
from dataclasses import dataclass

from tpuserve_server.core.errors import Code, ServingError
from tpuserve_server.frontends.status import grpc_message

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """A status other than OK."""

    code: Code
    message: str


SHUTTING_DOWN = RpcFailure(Code.UNAVAILABLE, "The server is shutting down")


def unknown_method(path: str) -> RpcFailure:
    """For a path that is not in the table."""
    return RpcFailure(Code.UNIMPLEMENTED, f"Unknown method {path}")


def failure_of(error: Exception, path: str) -> RpcFailure:
    """The status for what a method raised. Anything but a ServingError is our fault: logged here, hidden outside."""
    if isinstance(error, ServingError):
        return RpcFailure(error.code, grpc_message(error.message))
    _log.error("Unexpected error in %s", path, exc_info=error)
    return RpcFailure(Code.INTERNAL, "Internal error")
