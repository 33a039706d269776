"""Tests for the clients that may control the server."""

from typing import Any, Literal

import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.access.access import CONTROL, READ
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied
from tpuserve_server.protocols.control import Control, asgi_client, check_browser, names_this_machine
from tpuserve_server.protocols.options import ControlOptions
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

LOOPBACK, ANY = Control(ControlOptions()), Control(ControlOptions("any"))
CONTROL_METHODS = [
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    "/inference.GRPCInferenceService/RepositoryModelLoad",
    "/inference.GRPCInferenceService/RepositoryModelUnload",
    "/inference.GRPCInferenceService/LogSettings",
    "/tensorflow.ProfilerService/Profile",
    "/tensorflow.ProfilerService/Terminate",
]


async def echo(body: bytes, _context: CallContext) -> bytes:
    return body


def context(client: str | None) -> CallContext:
    return CallContext(Deadline.never(), {}, None, lambda: client)


@pytest.mark.parametrize("client", [None, "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_clients_of_this_machine_may_control_it(client: str | None) -> None:
    LOOPBACK.check(client)


@pytest.mark.parametrize("client", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "0.0.0.0", "localhost", ""])
def test_others_need_the_flag(client: str) -> None:
    ANY.check(client)
    with pytest.raises(PermissionDenied, match="--control=any"):
        LOOPBACK.check(client)


@pytest.mark.parametrize("path", CONTROL_METHODS)
async def test_control_methods_are_refused_to_strangers(path: str) -> None:
    table = LOOPBACK.wrap_table({path: UnaryMethod(echo, CONTROL)})
    method = table[path]
    assert isinstance(method, UnaryMethod)
    assert await method.handle(b"x", context("::1")) == b"x"
    with pytest.raises(PermissionDenied, match=r"^Clients at 10\.1\.2\.3 may not control this server"):
        await method.handle(b"x", context("10.1.2.3"))


async def test_strangers_may_read_the_settings_of_the_log() -> None:
    path = "/inference.GRPCInferenceService/LogSettings"
    method = LOOPBACK.wrap_table({path: UnaryMethod(echo, READ)})[path]
    assert isinstance(method, UnaryMethod)
    assert await method.handle(b"", context("10.1.2.3")) == b""


def test_other_methods_are_untouched() -> None:
    table = rpc_table(FakeService(), FakeMetrics(), FakeClock())
    assert LOOPBACK.wrap_table(table) == table


def test_the_client_of_a_scope_is_its_address() -> None:
    assert asgi_client({"client": ("10.0.0.1", 5)}) == "10.0.0.1"
    assert asgi_client({"client": None}) is None


def scope(*headers: tuple[bytes, bytes], host: bytes = b"localhost:8501", client: str = "127.0.0.1") -> dict[str, Any]:
    return {"headers": [(b"host", host), *headers], "client": (client, 5)}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"sec-fetch-site", b"same-origin")],
        [(b"sec-fetch-site", b"none")],
        [(b"origin", b"http://localhost:8501")],
        [(b"origin", b"https://LOCALHOST:8501"), (b"sec-fetch-site", b"same-origin")],
    ],
)
def test_other_clients_and_own_pages_pass(headers: list[tuple[bytes, bytes]]) -> None:
    check_browser(scope(*headers))
    assert Control(ControlOptions()).may_control(scope(*headers))


@pytest.mark.parametrize(
    "headers",
    [
        [(b"sec-fetch-site", b"cross-site")],
        [(b"sec-fetch-site", b"same-site")],
        [(b"sec-fetch-site", b"")],
        [(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"cross-site")],
        [(b"origin", b"http://evil.example")],
        [(b"origin", b"http://localhost:8502")],
        [(b"origin", b"http://localhost")],
        [(b"origin", b"null")],
        [(b"origin", b"")],
        [(b"origin", b"file://localhost:8501")],
        [(b"origin", b"http://[::1")],
        [(b"origin", b"http://localhost:8501"), (b"origin", b"http://evil.example")],
        [(b"origin", b"http://evil.example"), (b"sec-fetch-site", b"same-origin")],
    ],
)
def test_pages_of_other_sites_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    options: tuple[Literal["loopback", "any"], ...] = ("loopback", "any")
    for control in options:
        with pytest.raises(PermissionDenied, match="a web page that this server has not sent"):
            Control(ControlOptions(control)).check_rest(scope(*headers))


@pytest.mark.parametrize(
    ("origin", "host"),
    [(b"http://a.example", b"a.example:80"), (b"https://a.example", b"a.example:443"), (b"http://a:80", b"a")],
)
def test_a_default_port_may_be_written_or_not(origin: bytes, host: bytes) -> None:
    check_browser(scope((b"origin", origin), host=host))


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:1", b"127.0.0.1:8501", b"[::1]:8501", b"10.1.2.3", b""])
def test_addresses_name_this_machine(host: bytes) -> None:
    assert names_this_machine(scope(host=host))


@pytest.mark.parametrize(
    "host", [b"evil.example", b"evil.example:8501", b"localhost.evil.example", b"127.0.0.1.nip.io"]
)
def test_a_page_under_a_name_that_dns_resolves_to_this_machine_is_refused(host: bytes) -> None:
    page = scope((b"origin", b"http://" + host), host=host)
    assert not names_this_machine(page)
    with pytest.raises(PermissionDenied, match="IP address or as localhost"):
        Control(ControlOptions()).check_rest(page)
    assert not Control(ControlOptions()).may_control(scope(host=host))
    Control(ControlOptions("any")).check_rest(page)
    assert Control(ControlOptions("any")).may_control(page)


def test_a_client_that_is_no_browser_may_use_any_name() -> None:
    Control(ControlOptions()).check_rest(scope(host=b"server.example"))


def test_the_address_of_the_client_decides_first() -> None:
    stranger = scope((b"sec-fetch-site", b"same-origin"), client="10.1.2.3")
    with pytest.raises(PermissionDenied, match=r"Clients at 10\.1\.2\.3"):
        Control(ControlOptions()).check_rest(stranger)
    assert not Control(ControlOptions()).may_control(stranger)
