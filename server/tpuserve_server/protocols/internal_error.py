"""Log events of internal errors, with the request id that the client gets."""

import logging

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.observe.requests.trace_context import identify_response
from tpuserve_server.protocols.rpc import Trailers

_log = logging.getLogger(__name__)


def log_internal(error: Exception, method: str, trailers: Trailers) -> None:
    """Log an internal error of `method`. Give its response an id among `trailers` if it has none.

    A ServingError has a message for the client, and its origin has logged its traceback.
    """
    fields = {"request_id": identify_response(trailers)}
    if isinstance(error, ServingError):
        _log.warning("Internal error in %s: %s", method, error.message, extra={"fields": fields})
    else:
        _log.error("Unexpected error in %s", method, exc_info=error, extra={"fields": fields})
