"""How a call ended that did not end well."""

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
# What an answer without a gRPC status means: doc/http-grpc-status-mapping.md of gRPC.
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
    """Any status but OK. `code` is its name."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class NotProcessed(GrpcError):
    """The server has not looked at the request, and said so: it may be sent again."""


def code_name(number: str) -> str:
    """The name of a status that came as text; UNKNOWN for what is none."""
    return CODES[int(number)] if number.isascii() and number.isdigit() and int(number) < len(CODES) else "UNKNOWN"


def error_of_http(status: str) -> GrpcError:
    """For a response of HTTP's alone."""
    return GrpcError(_OF_HTTP.get(status, "UNKNOWN"), f"HTTP {status or 'without a status'}, and no grpc-status")
