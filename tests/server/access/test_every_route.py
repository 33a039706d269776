"""Every method and route of the server, from its own tables, with every kind of credential. A new one is tested, too.

docs/how-to/operate/access.md lists the roles of all routes, and a test holds it to the same tables.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.access import KeyFile
from tests.support.server_routes import ServerRoute, routes_of
from tpuserve_server.access.access import Role
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied, ServingError, Unauthenticated
from tpuserve_server.protocols.grpc_methods import METHODS
from tpuserve_server.protocols.rpc import CallContext, GuardedMethod, GuardedUnary, UnaryHandler
from tpuserve_server.startup.app import Server, build
from tpuserve_server.startup.validation import read_settings

STRANGER: Final = "10.1.2.3"
HTTP_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# The roles and models of each client. `limited` may use no model that a request of these tests names.
CLIENTS: Final = {
    "none": ((), ""),
    "predict": ((Role.PREDICT,), ""),
    "read": ((Role.READ,), ""),
    "control": ((Role.CONTROL,), ""),
    "all": (tuple(Role), ""),
    "limited": (tuple(Role), "other"),
}
CREDENTIALS: Final = (*CLIENTS, "unknown", "malformed")
# A gRPC call that its admission allows, and its handler refuses.
LATE: Final = 499


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "credentials")
    for name, (roles, models) in CLIENTS.items():
        if roles:
            file.add(name, ",".join(role.value for role in roles), models)
    return file


def make_server(tmp_path_factory: pytest.TempPathFactory, **flags: object) -> Server:
    folder = tmp_path_factory.mktemp("server")
    monitoring = folder / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    (folder / "other").mkdir()
    settings = read_settings(
        model_name="other",
        model_base_path=str(folder / "other"),
        monitoring_config_file=monitoring,
        shared_memory_prefix="tpuserve",
        **flags,
    )
    return build(settings)


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[ServerRoute]:
    return routes_of(make_server(tmp_path_factory))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: KeyFile) -> Server:
    vertex = {"vertex_predict_route": "/vertex/predict", "vertex_health_route": "/vertex/health"}
    return make_server(tmp_path_factory, credentials_file=keys.path, **vertex)


def headers_of(keys: KeyFile, credential: str) -> dict[str, str]:
    match credential:
        case "none":
            return {}
        case "unknown":
            return {"authorization": "Bearer tpuserve_unknown"}
        case "malformed":
            return {"authorization": "Basic ???"}
        case _:
            return keys.bearer(credential)


def test_the_table_of_methods_has_a_line_for_each(server: Server) -> None:
    assert {path: isinstance(method, GuardedUnary) for path, method in server.rpc.items()} == {
        method.path: not method.is_stream for method in METHODS
    }


async def ask_rest(server: Server, method: str, path: str, headers: dict[str, str]) -> int:
    """Return the status of a response, without its body: a stream of events has no end."""
    status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    parts = urlsplit(path)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": parts.path,
        "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (STRANGER, 5), "server": ("server", 80),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, object]:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            status.set_result(int(str(message["status"])))

    running = asyncio.ensure_future(server.rest(scope, receive, send))  # type: ignore[arg-type]  # ASGI's types

    def end(_: object) -> None:
        if not status.done():
            status.set_result(0)

    running.add_done_callback(end)
    try:
        return await status
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ask_grpc(server: Server, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    """Return the HTTP status of a call's result. Calls that pass the guard have no useful message.

    401 and 403 are refusals by the admission, before a host reads the message. LATE is a refusal after it.
    """
    method, context = server.rpc[path], CallContext(Deadline.never(), headers, None, lambda: STRANGER)
    try:
        return await _answered(method, context, body)
    except Unauthenticated:
        return 401
    except PermissionDenied:
        return 403


async def _answered(method: GuardedMethod, context: CallContext, body: bytes) -> int:
    """Return the HTTP status of an admitted call. Raises the errors of its admission."""

    async def messages() -> AsyncIterator[bytes]:
        if body:
            yield body

    handle: UnaryHandler | None = None
    if isinstance(method, GuardedUnary):
        handle = await method.admit(context)
    else:
        answers = (await method.admit(context))(messages(), context)
    try:
        if handle is not None:
            await handle(body, context)
        else:
            await anext(answers, b"")
            await answers.aclose()  # type: ignore[attr-defined]  # a generator
    except (Unauthenticated, PermissionDenied):
        return LATE
    except ServingError:
        return 400
    return 200


async def ask(server: Server, route: ServerRoute, headers: dict[str, str]) -> int:
    if route.protocol == "rest":
        return await ask_rest(server, route.method, route.path, headers)
    # A malformed message, so that no profile is recorded. An empty one changes no settings.
    return await ask_grpc(server, route.path, headers, b"\xff" if "Profiler" in route.path else b"")


def expected(route: ServerRoute, credential: str) -> int:
    """Return 401, 403, or 0 for a request that passes, by the declaration of the route."""
    roles = route.access.roles
    if roles is None:
        return 0
    if credential not in CLIENTS or credential == "none":
        return 401
    own, models = CLIENTS[credential]
    if roles.isdisjoint(own):
        return 403
    return 403 if models and (route.access.of_server or (route.protocol == "rest" and route.has_model)) else 0


def test_no_route_is_open_by_mistake(routes: list[ServerRoute]) -> None:
    open_routes = {route.path for route in routes if route.access.roles is None}
    assert open_routes == {
        "/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/models", "/v1/models/m:predict",
        "/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady",
        "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
    }  # fmt: skip
    assert {route.method for route in routes if route.access.roles is None and route.path.startswith("/v1")} == {
        "OPTIONS"
    }


async def test_every_route_answers_by_the_role_that_it_declares(
    server: Server, routes: list[ServerRoute], keys: KeyFile
) -> None:
    print(f"\n{'route':76}" + "".join(f"{name:>11}" for name in CREDENTIALS))
    for route in routes:
        found = {name: await ask(server, route, headers_of(keys, name)) for name in CREDENTIALS}
        print(f"{route.method + ' ' + route.shown:76}" + "".join(f"{status:>11}" for status in found.values()))
        for name, status in found.items():
            if name == "limited" and route.protocol == "grpc" and not route.access.of_server:
                continue  # An empty message names no model. See test_models.py.
            assert (status if status in (401, 403, LATE) else 0) == expected(route, name), f"{name}: {route}"


async def test_no_http_method_passes_without_a_credential(server: Server, routes: list[ServerRoute]) -> None:
    by_path: dict[str, set[str]] = {}
    for route in routes:
        if route.protocol == "rest":
            by_path.setdefault(route.path, set()).update({route.method} if route.access.roles is None else ())
    for path, open_methods in by_path.items():
        for method in HTTP_METHODS:
            status = await ask_rest(server, method, path, {})
            is_open = open_methods & {"GET"} or (path.startswith("/v1/") and method == "OPTIONS")
            assert status == 401 or is_open, (method, path)


async def test_aliases_and_other_spellings_need_the_same_credential(server: Server, keys: KeyFile) -> None:
    assert await ask_rest(server, "POST", "/vertex/predict", {}) == 401
    assert await ask_rest(server, "POST", "/vertex/predict", keys.bearer("read")) == 403
    assert await ask_rest(server, "POST", "/vertex/predict", keys.bearer("predict")) == 400
    assert await ask_rest(server, "GET", "/vertex/health", {}) == 503
    for path in (
        "/V1/models/m", "/v1/Models/m", "/v1//models/m", "/v1/models/m/", "/v1/models/../models/m", "/v1/", "/V2/",
        "/v2//models/m", "/metrics/", "/Metrics", "//metrics", "/console/../metrics", "/healthz/../metrics", "/nothing",
        "/healthz/x", "/readyz/", "/v2/health/ready/", "/v2/health/ready/../../models/m", "/docs/x", "/debug",
    ):  # fmt: skip
        assert await ask_rest(server, "GET", path, {}) == 401, path
