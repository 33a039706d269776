"""Every method and route of a server, from the tables that serve them, with a path of each pattern."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from starlette.routing import Route

from tpuserve_server.access.access import Access
from tpuserve_server.protocols.oip_rest import route as oip
from tpuserve_server.protocols.rest import RestApp
from tpuserve_server.protocols.tf_rest import route as tf
from tpuserve_server.startup.app import Server

# Values of the groups in patterns and templates.
VALUES: Final = {"model": "m", "version": "1", "label": "l", "region": "r", "repository": "x", "name": "n"}
_ROUTES_OF_TF: Final = {
    tf.Action.PREDICT: [("POST", f"/v1/models/m{version}:predict") for version in ("", "/versions/1", "/labels/l")],
    tf.Action.CLASSIFY: [("POST", f"/v1/models/m{version}:classify") for version in ("", "/versions/1", "/labels/l")],
    tf.Action.REGRESS: [("POST", f"/v1/models/m{version}:regress") for version in ("", "/versions/1", "/labels/l")],
    tf.Action.STATUS: [("GET", f"/v1/models/m{version}") for version in ("", "/versions/1", "/labels/l")],
    tf.Action.METADATA: [("GET", f"/v1/models/m{version}/metadata") for version in ("", "/versions/1", "/labels/l")],
    tf.Action.LIST: [("GET", "/v1/models")],
    tf.Action.PREFLIGHT: [("OPTIONS", "/v1/models"), ("OPTIONS", "/v1/models/m:predict")],
}


@dataclass(frozen=True, slots=True)
class ServerRoute:
    """A method of gRPC, by its path, or a route of REST. `shown` is its path with names of groups."""

    protocol: Literal["grpc", "rest"]
    method: str
    path: str
    access: Access
    shown: str
    # Whether the path, or the message of the method, names a model.
    has_model: bool = False


def routes_of(server: Server) -> list[ServerRoute]:
    """Return the routes of a server without identities and without routes of Vertex AI."""
    app = server.rest
    assert isinstance(app, RestApp)
    return [*_methods(server), *_tf_routes(app), *_oip_routes(), *_operations(app)]


def _methods(server: Server) -> Iterator[ServerRoute]:
    for path, method in server.rpc.items():
        yield ServerRoute("grpc", "POST", path, method.access, path, has_model="Model" in path.rpartition("/")[2])


def _tf_routes(app: RestApp) -> Iterator[ServerRoute]:
    for action in tf.Action:
        for method, path in _ROUTES_OF_TF[action]:
            route = tf.parse_route(method, path.encode())
            assert route.action is action
            shown = re.sub(r"/m\b", "/MODEL", path).replace("s/1", "s/VERSION").replace("s/l", "s/LABEL")
            yield ServerRoute("rest", method, path, route.access, shown, has_model=bool(route.spec.name))


def _oip_routes() -> Iterator[ServerRoute]:
    for pattern, method, action, access in oip.PATHS:
        for path in sorted(_paths_of(pattern.pattern.decode())):
            route = oip.parse_route(method, path.encode())
            assert (route.action, route.access) == (action, access), path
            shown = _shown(path)
            yield ServerRoute("rest", method, path, access, shown, has_model=bool(route.spec.name))


def _paths_of(pattern: str) -> set[str]:
    """Return a path with and one without each optional part of a pattern."""
    filled = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda found: VALUES[found[1]], pattern)
    with_all = re.sub(r"\(\?:([^)]*)\)\?", r"\1", filled)
    without = re.sub(r"\(\?:[^)]*\)\?", "", filled)
    return {re.sub(r"(.)\?", optional, path) for path in (with_all, without) for optional in (r"\1", "")}


def _shown(path: str) -> str:
    names = {"m": "MODEL", "1": "VERSION", "r": "REGION", "x": "REPOSITORY"}
    return "/".join(names.get(part, part) for part in path.split("/"))


def _operations(app: RestApp) -> Iterator[ServerRoute]:
    for route in app.router.routes:
        assert isinstance(route, Route), route
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda found: VALUES[found[1]], route.path)
        shown = re.sub(r"\{(\w+)(?::path)?\}", lambda found: found[1].upper(), route.path)
        facts = app.operations.find({"type": "http", "method": "GET", "path": path})
        yield ServerRoute("rest", "GET", path, facts.access, shown)
