"""Tests for certificates that are read again: which are refused, and what new connections get."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.test_tls import CA, MUTUAL, SERVER, TLS, chain_of, key_of
from tpuserve_server.hosts.certificate_replacement import check_replacement
from tpuserve_server.hosts.certificates import Certificates
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

if TYPE_CHECKING:
    from tpuserve_server.core.certificate_status import CertificateStatus

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


async def presented(certificates: Certificates, authority: Path) -> bytes | None:
    """Return the certificate that a connection to a new server gets."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=certificates.context())
    async with server:
        context = ssl.create_default_context(cafile=authority)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=context)
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
    return certificate


async def reload(certificates: Certificates) -> None:
    """Read the certificates again, and wait for the end of the task that does it."""
    before = asyncio.all_tasks()
    certificates.reload()
    await asyncio.wait(asyncio.all_tasks() - before)


async def test_new_servers_get_the_certificate_that_was_read_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = tmp_path / "ca.pem"
    CA.cert_pem.write_to_path(str(authority))
    answers: list[TlsOptions] = [NEXT]

    def read() -> TlsOptions:
        if not answers:
            raise HostError("no file")
        return answers.pop()

    shown: list[CertificateStatus] = []
    certificates = Certificates(CURRENT, read, shown.append)
    first = await presented(certificates, authority)
    assert first == ssl.PEM_cert_to_DER_cert(SERVER.cert_chain_pems[0].bytes().decode())
    await reload(certificates)
    second = ssl.PEM_cert_to_DER_cert(OTHER.cert_chain_pems[0].bytes().decode())
    assert await presented(certificates, authority) == second
    await reload(certificates)
    assert "The server keeps its certificates: no file" in caplog.text
    assert await presented(certificates, authority) == second
    assert [status.reload_failure for status in shown] == ["", "", "no file"]
