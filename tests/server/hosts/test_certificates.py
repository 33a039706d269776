"""Tests for certificates that are read again: which are refused, and what new connections get."""

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.test_tls import CA, MUTUAL, TLS, chain_of, key_of
from tpuserve_server.hosts.certificates import Certificates, check_replacement
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

if TYPE_CHECKING:
    from tpuserve_server.core.terms.server_state import CertificateStatus

CURRENT = TlsOptions(**TLS)
OTHER = CA.issue_cert("127.0.0.1")
NEXT = TlsOptions(private_key=key_of(OTHER), certificate_chain=chain_of(OTHER))


def test_a_certificate_of_the_same_kind_may_replace_the_current_one() -> None:
    assert check_replacement(lambda: NEXT, CURRENT) is NEXT
    assert check_replacement(lambda: NEXT, None) is NEXT


def test_a_reload_cannot_begin_to_require_certificates_of_clients() -> None:
    with pytest.raises(HostError, match="not add or remove it"):
        check_replacement(lambda: TlsOptions(**MUTUAL), CURRENT)


def issued(*, not_before: datetime | None = None, not_after: datetime | None = None) -> TlsOptions:
    """Return a server's certificate with this validity."""
    own = CA.issue_cert("127.0.0.1", not_before=not_before, not_after=not_after)
    return TlsOptions(private_key=key_of(own), certificate_chain=chain_of(own), origin="here")


def test_a_certificate_that_no_client_accepts_now_replaces_nothing() -> None:
    now = datetime.now(UTC)
    with pytest.raises(HostError, match=r"^here: server_cert expired at \d{4}-"):
        check_replacement(
            lambda: issued(not_before=now - timedelta(days=9), not_after=now - timedelta(days=1)), CURRENT
        )
    with pytest.raises(HostError, match=r"^here: server_cert is not valid before \d{4}-"):
        check_replacement(lambda: issued(not_before=now + timedelta(days=1)), CURRENT)


async def reload(certificates: Certificates) -> None:
    """Read the certificates again, and wait for the end of the task that does it."""
    before = asyncio.all_tasks()
    certificates.reload()
    await asyncio.wait(asyncio.all_tasks() - before)


async def test_new_certificates_are_used_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[TlsOptions] = [NEXT]

    def read() -> TlsOptions:
        if not answers:
            raise HostError("no file")
        return answers.pop()

    async def use(tls: TlsOptions) -> None:
        used.append(tls)

    shown: list[CertificateStatus] = []
    used: list[TlsOptions] = []
    certificates = Certificates(CURRENT, read, use, shown.append)
    await reload(certificates)
    await reload(certificates)
    assert used == [NEXT]
    assert "The server keeps its certificates: no file" in caplog.text
    assert [status.reload_failure for status in shown] == ["", "", "no file"]


async def test_certificates_that_the_server_cannot_use_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def use(_: TlsOptions) -> None:
        raise HostError("unknown key")

    shown: list[CertificateStatus] = []
    await reload(Certificates(CURRENT, lambda: NEXT, use, shown.append))
    assert "The server keeps its certificates: unknown key" in caplog.text
    assert [status.reload_failure for status in shown] == ["", "unknown key"]


async def test_a_reload_that_is_asked_for_during_another_follows_it() -> None:
    used: list[str] = []
    files = iter(["first", "second", "third"])

    async def use(tls: TlsOptions) -> None:
        used.append(tls.origin)
        if tls.origin == "first":
            certificates.reload()
            certificates.reload()

    def read() -> TlsOptions:
        return dataclasses.replace(NEXT, origin=next(files))

    certificates = Certificates(CURRENT, read, use, lambda _: None)
    await reload(certificates)
    assert used == ["first", "second"]
