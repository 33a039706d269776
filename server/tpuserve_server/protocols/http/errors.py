"""Errors whose HTTP status does not follow from their code, and one without a response."""

from typing import Final

from tpuserve_server.core.terms.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tpuserve_server.protocols.status import http_status


class ClientGone(Cancelled):
    """The client disconnected, so the server sends no response."""

    def __init__(self) -> None:
        """Set the message, which only logs show."""
        super().__init__("The client disconnected")


class BodyTooLarge(ResourceExhausted):
    """The body is over the limit: HTTP status 413."""

    def __init__(self, limit_bytes: int) -> None:
        """Name `limit_bytes` in the message to the client."""
        super().__init__(f"Request body is larger than the limit of {limit_bytes} bytes")


class UnsupportedEncoding(InvalidArgument):
    """The body has an unsupported encoding: HTTP status 415."""

    def __init__(self, name: str) -> None:
        """Name the encoding as the client wrote it."""
        super().__init__(f"Content-Encoding {name} is not supported; use gzip or deflate")


class PathNotFound(NotFound):
    """The server has no such path."""

    def __init__(self) -> None:
        """Set the message, which is that of Triton and FastAPI."""
        super().__init__("Not Found")


class MethodNotAllowed(Unimplemented):
    """The path exists, but not for this method: HTTP status 405."""

    def __init__(self) -> None:
        """Set the message, which is that of Triton and FastAPI."""
        super().__init__("Method Not Allowed")


_OWN_STATUS: Final[dict[type[ServingError], int]] = {
    BodyTooLarge: 413,
    UnsupportedEncoding: 415,
    MethodNotAllowed: 405,
}


def status_of(error: ServingError) -> int:
    """Return the HTTP status for `error`."""
    return _OWN_STATUS.get(type(error)) or http_status(error.code)
