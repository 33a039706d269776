"""RouteFacts: what the guard knows of a REST request from its method and path."""

from typing import Final, NamedTuple

from tpuserve_server.access.access import ANY_ROLE, Access


class RouteFacts(NamedTuple):
    """`access` is what the request needs of its client, and `method` its name in metrics.

    `model` is None if the path names none; the body may still name one. A browser opens a page (`is_page`), so that it
    must ask for a password.
    """

    access: Access
    method: str
    model: str | None = None
    is_page: bool = False


# The name in metrics is that of the request meter.
UNKNOWN_ROUTE: Final = RouteFacts(ANY_ROLE, "Unknown")
