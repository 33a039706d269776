"""Tests of the poll for new certificates: it reports each change once."""

import asyncio

from tests.server.hosts.test_tls import TLS
from tpuserve_server.hosts.certificates import CertificatePoll
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

FIRST = TlsOptions(**TLS, origin="first")
SECOND = TlsOptions(**TLS, origin="second")


async def test_each_change_is_reported_once() -> None:
    looks: list[TlsOptions | str] = [FIRST, FIRST, "broken", "broken", SECOND, SECOND, SECOND, FIRST]
    seen: list[TlsOptions | str] = []
    all_seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> TlsOptions:
        now = looks.pop(0) if len(looks) > 1 else looks[0]
        seen.append(now)
        if len(seen) > 8:
            loop.call_soon_threadsafe(all_seen.set)
        if isinstance(now, str):
            raise HostError(now)
        return now

    changes: list[int] = []
    poll = CertificatePoll(read, 0.001, lambda: changes.append(len(seen)))
    with poll.running(FIRST):
        await all_seen.wait()
    assert changes == [3, 5, 8]


async def test_without_an_interval_nothing_is_read() -> None:
    def read() -> TlsOptions:
        raise AssertionError

    before = asyncio.all_tasks()
    with CertificatePoll(read, 0, lambda: None).running(FIRST):
        assert asyncio.all_tasks() == before
