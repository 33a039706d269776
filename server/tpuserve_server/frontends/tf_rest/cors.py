"""CORS: requests from pages of other origins, as TensorFlow Serving answers them (tensorflow_serving/model_servers).

The server answers preflights even if CORS is off (http_server.cc, ProcessRequest). With CORS on, every response under
/v1/ carries the headers that browsers require (http_rest_api_util.cc, AddCORSHeaders). They also allow tpuserve's own
request headers.
"""

from typing import TYPE_CHECKING

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.frontends.http.headers import TIMEOUT_HEADER
from tpuserve_server.frontends.priority import PRIORITY_HEADER
from tpuserve_server.identity.secret import API_KEY, AUTHORIZATION

if TYPE_CHECKING:
    from starlette.types import Scope

# With "*" as the origin, browsers send no credentials of their own: the page itself must know the key.
_CREDENTIALS = f"{AUTHORIZATION}, {API_KEY}"
CORS_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", f"Content-Type, {TIMEOUT_HEADER}, {PRIORITY_HEADER}, {_CREDENTIALS}".encode()),
)


def check_preflight(scope: "Scope") -> None:
    """Raise FailedPrecondition when an OPTIONS request names no web page as its origin."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    if b"http://" not in origin and b"https://" not in origin:
        raise FailedPrecondition("Origin header is missing in CORS preflight")
