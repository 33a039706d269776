"""Tests for the clients that may control the server."""

import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.access.access import CONTROL, READ
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied
from tpuserve_server.protocols.control import Control, asgi_client
from tpuserve_server.protocols.control_options import ControlOptions
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
