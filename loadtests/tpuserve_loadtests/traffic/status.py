"""Statuses of failed calls."""

from typing import Final

# https://grpc.github.io/grpc/core/md_doc_statuscodes.html, by number.
CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
# Status codes for responses without a gRPC status: gRPC's doc/http-grpc-status-mapping.md.
_OF_HTTP: Final = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}


class GrpcError(Exception):
    """Error for every status except OK. `code` is its name."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class NotProcessed(GrpcError):
    """Error for a request that the server has not processed, so that the client can retry it."""


def code_name(number: str) -> str:
    """Return the name of a numeric status, or UNKNOWN for an invalid number."""
    return CODES[int(number)] if number.isascii() and number.isdigit() and int(number) < len(CODES) else "UNKNOWN"


def error_of_http(status: str) -> GrpcError:
    """Return the error for an HTTP response without a gRPC status."""
    return GrpcError(_OF_HTTP.get(status, "UNKNOWN"), f"HTTP {status or 'without a status'}, and no grpc-status")
