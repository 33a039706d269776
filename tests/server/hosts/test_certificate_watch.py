"""Tests for the watch of the certificates, with a time of day that the test sets."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.hosts import certificates
from tpuserve_server.hosts.certificates import WARNING_DAYS, CertificateWatch

DAY_S = 86400.0


class LoggedLines(logging.Handler):
    """The lines of the watch, and an event that the next one sets."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.came.set()


@pytest.fixture
def logged() -> Iterator[LoggedLines]:
    logger, handler = logging.getLogger(certificates.__name__), LoggedLines()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_status_is_kept_until_the_next_one() -> None:
    watch = CertificateWatch(lambda: 0.0)
    assert watch.find() is None
    first, second = CertificateStatus({"server": 99 * DAY_S}), CertificateStatus({"server": 199 * DAY_S}, "no file")
    watch.show(first)
    watch.show(second)
    watch.stop()
    assert watch.find() is second


async def test_warning_comes_when_it_is_due_while_the_server_runs(logged: LoggedLines) -> None:
    # The certificate expires at 0, and its warning begins 10 ms after `show`.
    now_s = [-WARNING_DAYS * DAY_S - 0.01]
    watch = CertificateWatch(lambda: now_s[0])
    watch.show(CertificateStatus({"server": 0.0}))
    assert not logged.lines
    now_s[0] = -DAY_S
    await logged.came.wait()
    watch.stop()
    assert [line.partition(". ")[0] for line in logged.lines] == [
        "A certificate of server_cert expires at 1970-01-01 00:00 UTC, in 1.0 days"
    ]


async def test_replaced_certificate_ends_the_warnings(logged: LoggedLines) -> None:
    watch = CertificateWatch(lambda: 0.0)
    watch.show(CertificateStatus({"server": -DAY_S}))
    watch.show(CertificateStatus({"server": 99 * DAY_S}))
    watch.stop()
    assert len(logged.lines) == 1
    assert "expired at 1969-12-31 00:00 UTC" in logged.lines[0]
