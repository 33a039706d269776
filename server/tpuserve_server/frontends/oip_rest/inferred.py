"""The HTTP response of an answered inference request."""

from tpuserve_server.core.types import CacheOutcome
from tpuserve_server.frontends.http.response import CACHE_HEADERS, HttpResponse
from tpuserve_server.frontends.oip_rest.header_length import JSON_LENGTH_HEADER
from tpuserve_server.wire.oip.infer_json_response import EncodedResponse


def inferred(encoded: EncodedResponse, version: int, cache: CacheOutcome) -> HttpResponse:
    """Return the response with the body, and with the length of its JSON if binary data follow it."""
    body, json_bytes = encoded
    headers = CACHE_HEADERS[cache]
    if json_bytes is None:
        return HttpResponse(200, body, version, headers)
    headers = (*headers, (JSON_LENGTH_HEADER, b"%d" % json_bytes))
    return HttpResponse(200, body, version, headers, content_type=b"application/octet-stream")
