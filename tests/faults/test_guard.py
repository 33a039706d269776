"""Tests that every route of every protocol passes the guard exactly once.

The routes come from the server's own tables.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import pytest
from starlette.routing import Route

from tests.faults import guarded_application
from tests.faults.fault_row import FaultRow
from tests.faults.guarded_application import FOLDER_VARIABLE, PASSWORD, make_server
from tests.server.hosts.host_process import PATIENCE_S, HostProcess
from tpuserve_server.protocols.rest import RestApp
from tpuserve_server.protocols.rpc import GuardedUnary

# No method can decode this body, so no method acts on it.
MALFORMED = b"\xff"
REFUSALS = [((), grpc.StatusCode.UNAUTHENTICATED, 401), (("wrong",), grpc.StatusCode.PERMISSION_DENIED, 403)]


class GuardedProcess(HostProcess):
    script: ClassVar[Path] = Path(guarded_application.__file__)

    def attempt(self) -> tuple[str, str, str, str | None]:
        """Return the next attempt that the rule reported."""
        seen = self.wait_for("attempt")
        return seen["protocol"], seen["method"], seen["path"], seen["model"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "models").mkdir()
    (folder / "monitoring.config").write_text('prometheus_config { enable: true, path: "/alias/metrics" }')
    return folder


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[GuardedProcess]:
    host = GuardedProcess.started_in({**os.environ, FOLDER_VARIABLE: str(folder)})
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(scope="module")
def rpc_paths(folder: Path) -> dict[str, bool]:
    """Return whether each method is unary, by path, from the server's table."""
    return {path: isinstance(method, GuardedUnary) for path, method in make_server(folder).rpc.items()}


@pytest.fixture(scope="module")
def rest_paths(folder: Path) -> list[tuple[str, str]]:
    """Return the application's routes, the documented paths of its protocols, and unknown paths."""
    app = make_server(folder).rest
    assert isinstance(app, RestApp)
    own = [(method, route.path) for route in app.routes if isinstance(route, Route) for method in route.methods or ()]
    documented = [(method.upper(), path) for path, found in app.openapi()["paths"].items() for method in found]
    routes = dict.fromkeys([*own, *documented, ("OPTIONS", "/v1/models/m:predict"), ("GET", "/v1/x"), ("GET", "/x")])
    values = {"model": "m", "version": "7", "label": "l", "region": "r", "name": "n"}
    return [(method, path.replace(":path}", "}").format(**values)) for method, path in routes]


def call(channel: Any, path: str, *, unary: bool, password: tuple[str, ...]) -> grpc.StatusCode:  # noqa: ANN401  # grpcio's stubs type no call without a serializer.
    """Make one call and return its status."""
    metadata = tuple(("authorization", value) for value in password)
    try:
        if unary:
            channel.unary_unary(path)(MALFORMED, metadata=metadata, timeout=PATIENCE_S)
        else:
            list(channel.stream_stream(path)(iter([MALFORMED]), metadata=metadata, timeout=PATIENCE_S))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


Record = Callable[[FaultRow], None]


def row(protocol: str, routes: int) -> FaultRow:
    expected = "UNAUTHENTICATED, PERMISSION_DENIED" if protocol == "gRPC" else "401, 403"
    return FaultRow(18, f"no or a wrong password, {routes} routes", protocol, expected, expected)


def test_every_grpc_method_passes_the_guard_once(
    guarded: GuardedProcess, rpc_paths: dict[str, bool], record: Record
) -> None:
    assert {path.split(".")[0] for path in rpc_paths} == {"/tensorflow", "/grpc", "/inference"}
    with grpc.insecure_channel(guarded.grpc) as channel:
        for path, unary in rpc_paths.items():
            for password, code, _ in REFUSALS:
                assert call(channel, path, unary=unary, password=password) is code, path
                assert guarded.attempt() == ("grpc", "POST", path, None)
            passed = call(channel, path, unary=unary, password=(PASSWORD,))
            assert passed not in {code for _, code, _ in REFUSALS}, path
            assert guarded.attempt() == ("grpc", "POST", path, None)
    expect_no_more(guarded)
    record(row("gRPC", len(rpc_paths)))


def test_every_rest_route_passes_the_guard_once(
    guarded: GuardedProcess, rest_paths: list[tuple[str, str]], record: Record
) -> None:
    assert {
        "/healthz",
        "/readyz",
        "/metrics",
        "/alias/metrics",
        "/console/events",
        "/debug/status",
        "/openapi.json",
        "/v1/models/m:predict",
        "/v2/models/m/infer",
    } <= {path for _, path in rest_paths}
    with httpx.Client(base_url=guarded.rest, timeout=PATIENCE_S) as client:
        for method, path in rest_paths:
            seen = ("rest", method, path, "m" if "/models/m" in path and method != "OPTIONS" else None)
            for password, _, status in REFUSALS:
                refused = client.request(method, path, headers=[("authorization", value) for value in password])
                assert refused.status_code == status, path
                assert method == "HEAD" or refused.json().keys() == {"error"}
                assert guarded.attempt() == seen
            # The stream of the console's events has no end.
            with client.stream(method, path, headers={"authorization": PASSWORD}) as passed:
                assert passed.status_code not in (401, 403), path
            assert guarded.attempt() == seen
    expect_no_more(guarded)
    record(row("REST", len(rest_paths)))


def expect_no_more(guarded: GuardedProcess) -> None:
    """Check that the rule saw no request twice: the next attempt must be this one."""
    httpx.get(f"{guarded.rest}/last", timeout=PATIENCE_S)
    assert guarded.attempt() == ("rest", "GET", "/last", None)
