"""Form of a route that the platform chooses. Imports no heavy modules, because the command line checks it."""

import re

from tpuserve_server.core.terms.errors import InvalidArgument

# The characters of a path (RFC 3986, 3.3) without percent-encoding, which proxies may decode.
_PATH = re.compile(r"(/[A-Za-z0-9\-._~!$&'()*+,;=:@]+)+")


def check_route(setting: str, route: str) -> None:
    """Check the form of a route. `setting` names it in messages.

    Raises:
        InvalidArgument: the route is not an absolute path without query, empty segments and escapes.
    """
    if not _PATH.fullmatch(route) or {".", ".."} & set(route.split("/")):
        raise InvalidArgument(
            f"{setting} must be an absolute path without query and escapes, such as /predict; was {route!r}"
        )
