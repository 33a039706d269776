"""AccessLog: a log line for each of some requests, with its result, its stages and its ids."""

import logging
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.logs.log_format import ACCESS
from tpuserve_server.observe.options import AccessLogOptions
from tpuserve_server.observe.requests.request_record import RequestRecord

_log = logging.getLogger(ACCESS)

# Python 3.11 takes 0.2 us to find a member of an enumeration, and every request needs this one.
_OK: Final = Code.OK
# An overloaded server refuses far more requests than anyone reads lines of.
MOST_ERRORS_PER_S: Final = 100
_DIGITS: Final = 3


class AccessLog:
    """Watches requests on the event loop, and logs them. The log's thread renders the lines."""

    def __init__(self, options: AccessLogOptions, choose: Callable[[], float] = random.random) -> None:
        """Log as `options` say. `choose` returns a number from 0 up to 1."""
        self._success_ratio = options.success_ratio
        self._choose = choose
        self._errors = RateLimit(MOST_ERRORS_PER_S)
        self._omitted = 0

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        """Return whether to log a request that ends at `now_s`."""
        if code is _OK:
            return self._success_ratio > 0.0 and self._choose() < self._success_ratio
        is_admitted = self._errors.admits(now_s)
        if not is_admitted:
            self._omitted += 1
        return is_admitted

    def watch(self, record: RequestRecord) -> None:
        """Log a request."""
        if not _log.isEnabledFor(logging.INFO):
            return
        omitted, self._omitted = self._omitted, 0
        message = f"{record.method} {record.code.name}"
        # `Logger.info` would also look for its caller, which takes longer than everything else here.
        line = _log.makeRecord(ACCESS, logging.INFO, __file__, 0, message, (), None)
        line.__dict__["fields"] = partial(fields_of, record, omitted)
        _log.handle(line)


def fields_of(record: RequestRecord, omitted_errors: int = 0) -> dict[str, object]:
    """Return the fields of a request's line. None stands for an unknown value."""
    runs = [run for times in record.times for run in times.runs]
    return {
        "protocol": record.protocol,
        "method": record.method,
        "model": record.model or None,
        "version": record.version,
        "signature": record.signature or None,
        "code": record.code.name,
        "error": record.error or None,
        "latency_ms": _ms(record.latency_s),
        "stages_ms": {stage.name: _ms(stage.duration_s) for stage in record.stages if stage.name != "total"},
        "cached": record.is_cached or None,
        "batch": runs[-1].number if runs else None,
        "batch_requests": runs[-1].requests if runs else None,
        "batch_rows": runs[-1].bucket if runs else None,
        "client": record.client or None,
        "request_id": record.request_id or None,
        "trace_id": record.client_trace_id or None if record.trace is None else record.trace.trace_id,
        "omitted_errors": omitted_errors or None,
    }


def _ms(duration_s: float) -> float:
    return round(duration_s * 1000.0, _DIGITS)


class RateLimit:
    """Token bucket with the tokens of one second. One thread owns it. Times are monotonic."""

    def __init__(self, per_s: float) -> None:
        """Admit `per_s` events each second, at least 1."""
        self._per_s = per_s
        self._tokens = 0.0
        # The first event finds a full bucket.
        self._at_s = -math.inf

    def admits(self, now_s: float) -> bool:
        """Take a token, and return whether there was one."""
        self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, self._per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
