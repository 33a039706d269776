"""Errors that have an HTTP status of their own, or none at all."""

from typing import Final

from tpuserve_server.core.errors import Cancelled, InvalidArgument, ResourceExhausted, ServingError
from tpuserve_server.frontends.status import http_status


class ClientGone(Cancelled):
    """The client disconnected: there is nobody to answer."""

    def __init__(self) -> None:
        """Nobody reads the message but a log."""
        super().__init__("The client disconnected")


class BodyTooLarge(ResourceExhausted):
    """The body is over the limit: 413."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is told to the client."""
        super().__init__(f"Request body is larger than the limit of {limit_bytes} bytes")


class UnsupportedEncoding(InvalidArgument):
    """The body comes in an encoding that is not spoken here: 415."""

    def __init__(self, name: str) -> None:
        """`name` as the client wrote it."""
        super().__init__(f"Content-Encoding {name} is not supported; use gzip")


_OWN_STATUS: Final[dict[type[ServingError], int]] = {BodyTooLarge: 413, UnsupportedEncoding: 415}


def status_of(error: ServingError) -> int:
    """The HTTP status that answers `error`."""
    return _OWN_STATUS.get(type(error)) or http_status(error.code)
