"""Requests from pages of other origins, as TensorFlow Serving answers them (tensorflow_serving/model_servers).

Preflights are answered whether CORS is on or not (http_server.cc, ProcessRequest); what lets a browser go on is the
headers, which every response under /v1/ has when it is on (http_rest_api_util.cc, AddCORSHeaders; our own headers may
be sent, too).
"""

from typing import TYPE_CHECKING

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.frontends.http.headers import TIMEOUT_HEADER
from tpuserve_server.frontends.priority import PRIORITY_HEADER

if TYPE_CHECKING:
    from starlette.types import Scope

CORS_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", f"Content-Type, {TIMEOUT_HEADER}, {PRIORITY_HEADER}".encode()),
)


def check_preflight(scope: "Scope") -> None:
    """Raise FailedPrecondition when an OPTIONS request names no web page as its origin."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    if b"http://" not in origin and b"https://" not in origin:
        raise FailedPrecondition("Origin header is missing in CORS preflight")
