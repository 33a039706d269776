"""Tests for Envoy's own figures, from a real Envoy with TLS and every limit."""

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from tests.server.hosts.plain_envoy import plain_envoy
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.envoy.admin import AdminError, EnvoyAdmin, until
from tpuserve_server.hosts.envoy.figures import FIGURES, EnvoyFigures
from tpuserve_server.hosts.envoy.overload import rate_limit
from tpuserve_server.hosts.envoy.secret_files import SecretFiles
from tpuserve_server.hosts.tls import TlsOptions

CA = trustme.CA()
SERVER = CA.issue_cert("127.0.0.1")
CLIENT = CA.issue_cert("client@example.org")
PREDICT = "/v1/models/m:predict"


def tls() -> TlsOptions:
    return TlsOptions(
        private_key=SERVER.private_key_pem.bytes().decode(),
        certificate_chain="".join(pem.bytes().decode() for pem in SERVER.cert_chain_pems),
        client_ca=CA.cert_pem.bytes().decode(),
    )


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[EnvoyAdmin]:
    """Yield the admin interface of an Envoy with TLS, a limited heap and a limited rate, on a port for REST."""
    options = HostOptions(
        bind_address="127.0.0.1",
        grpc_port=None,
        rest_port=0,
        tls=tls(),
        max_heap_bytes=1 << 30,
        max_requests_per_s=0.001,
    )
    SecretFiles(tmp_path).write(tls())
    with plain_envoy(options, tmp_path, rate_limit(options)) as path:
        admin = EnvoyAdmin(path)
        await until(admin.is_live)
        listening = admin.listening(options)
        assert listening.rest is not None
        await call(listening.rest)
        yield admin


def read_a_byte(address: str, context: ssl.SSLContext) -> None:
    """Connect and read: a client without a certificate learns only then that it is refused."""
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        assert connection.recv(1) == b""


async def call(address: str) -> None:
    """Send a few requests, of which the rate limit refuses some, and fail a TLS handshake."""
    context = ssl.create_default_context()
    CA.configure_trust(context)
    with contextlib.suppress(ConnectionError), pytest.raises(ssl.SSLError):
        await asyncio.to_thread(read_a_byte, address, context)
    CLIENT.configure_cert(context)
    async with httpx.AsyncClient(verify=context, base_url=f"https://{address}") as client:
        answers = [await client.post(PREDICT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]


def read(page: str) -> dict[str, float]:
    """Return the sums of all series by name. The parser of prometheus_client changes the names of some counters."""
    sums: dict[str, float] = {}
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


async def test_a_real_envoy_has_every_figure_with_its_kind_and_labels(admin: EnvoyAdmin) -> None:
    page = EnvoyFigures(admin).page()
    assert list(text_string_to_metric_families(page))
    found = {
        (name, kind, tuple(re.findall(r'(\w+)="', labels)))
        for name, kind, labels in re.findall(r"^# TYPE (\S+) (\S+)\n\1(.*) \S+$", page, re.MULTILINE)
    }
    assert found == {(figure.name, figure.kind, figure.labels) for figure in FIGURES}


async def test_figures_count_what_envoy_did(admin: EnvoyAdmin) -> None:
    figures = EnvoyFigures(admin)
    counts = read(figures.page())
    assert counts["envoy_http_downstream_rq_total"] == 3
    assert counts["envoy_http_downstream_rq_xx"] == 3
    assert counts["envoy_http_local_rate_limit_rate_limited"] == 2
    assert counts["envoy_listener_ssl_handshake"] == 1
    assert counts["envoy_listener_ssl_fail_verify_no_cert"] == 1
    assert 0 < counts["envoy_server_days_until_first_cert_expiring"] < 2**32 - 1
    assert counts["envoy_server_memory_allocated"] > 1e6


async def test_an_envoy_that_does_not_respond_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with pytest.raises(AdminError, match="does not respond"):
        EnvoyFigures(EnvoyAdmin(path)).page()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(AdminError, match=r"No response to /stats/prometheus\?filter=.* within 0.05 s"):
            await asyncio.to_thread(EnvoyFigures(EnvoyAdmin(path, 0.05)).page)


class ScriptedAdmin(EnvoyAdmin):
    """An admin interface with this page: Envoy writes the address of a listener into a label."""

    def statistics(self, names: str) -> str:
        series = 'envoy_listener_ssl_handshake{envoy_listener_address="a\x85b"} 1'
        return f"# TYPE envoy_listener_ssl_handshake counter\n{series}\n"


def test_other_line_separators_in_a_label_do_not_break_the_page() -> None:
    page = EnvoyFigures(ScriptedAdmin(Path("/none"))).page()
    assert page == ScriptedAdmin(Path("/none")).statistics("")
    [family] = text_string_to_metric_families(page)
    assert len(family.samples) == 1
