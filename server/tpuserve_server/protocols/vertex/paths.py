"""VertexPaths: the platform's routes, and the main routes that answer them. Refuses routes with another meaning."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.tf_rest.route import Action, Route, parse_route

READINESS = "/readyz"

_RESERVED = frozenset({"/metrics", "/healthz", READINESS, "/openapi.json"})
# Prefixes of the protocols, in lower case. Under /v1/, only paths of models have a meaning.
_PREFIXES = ("/v1/models", "/v2")


@dataclass(frozen=True, slots=True)
class VertexPaths:
    """The routes of the platform, or None for one that is not set, and the main path of predictions.

    With `has_status`, the health route is also the path of the model's status, which stays once the server is ready.
    """

    health: str | None
    predict: str | None
    predict_path: str
    has_status: bool = False

    @classmethod
    def of(
        cls,
        model: str,
        health: tuple[str, str | None],
        predict: tuple[str, str | None],
        reserved: Collection[str],
    ) -> "VertexPaths":
        """Create the paths of `model`. `health` and `predict` are a setting's name and its value.

        `reserved` are more paths of the server.

        Raises:
            InvalidArgument: a route has another meaning in this server, or both are the same.
        """
        main = f"/v1/models/{quote(model, safe='')}:predict"
        health_route, predict_route = health[1], predict[1]
        if health_route is not None and health_route == predict_route:
            raise InvalidArgument(f"{health[0]} and {predict[0]} are both {health_route}; they must differ")
        has_status = False
        if predict_route is not None and (own := _own_route("POST", predict_route)) is not None:
            if own.action is not Action.PREDICT or own.spec.name != model:
                raise _collides(predict, f"; the path of predictions is {main}")
            main = predict_route
        elif predict_route is not None:
            _check_free(predict, reserved)
        if health_route is not None and (own := _own_route("GET", health_route)) is not None:
            if own.action is not Action.STATUS or own.spec.name != model:
                raise _collides(health, f"; the path of the readiness is {READINESS}")
            has_status = True
        elif health_route is not None:
            _check_free(health, reserved, READINESS)
        return cls(health_route, predict_route, main, has_status)


def _own_route(method: str, route: str) -> Route | None:
    """Return the meaning of a route under /v1/, or None if it has none."""
    try:
        return parse_route(method, route.encode())
    except InvalidArgument:
        return None


def _check_free(route: tuple[str, str | None], reserved: Collection[str], allowed: str = "") -> None:
    path = (route[1] or "").lower()
    is_protocols = any(path == prefix or path.startswith(f"{prefix}/") for prefix in _PREFIXES)
    if is_protocols or (path in {*_RESERVED, *reserved} and path != allowed):
        raise _collides(route, f"; use {allowed} or another path" if allowed else "")


def _collides(route: tuple[str, str | None], hint: str) -> InvalidArgument:
    return InvalidArgument(f"{route[0]}: {route[1]} has another meaning in this server{hint}")
