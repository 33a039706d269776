"""Parser for paths under /v2, with Triton's rules (server, http_server.cc): case and slashes count."""

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import ModelSpec
from tpuserve_server.frontends.http.errors import MethodNotAllowed, PathNotFound
from tpuserve_server.wire.oip.model_spec import parse_version

# Longer paths are not cached, so that clients cannot fill memory with long ones.
_MAX_CACHED_PATH_BYTES = 512


class Action(enum.Enum):
    """The requested operation. The value is the method's name in metrics."""

    INFER = "ModelInfer"
    SERVER_LIVE = "ServerLive"
    SERVER_READY = "ServerReady"
    SERVER_METADATA = "ServerMetadata"
    MODEL_READY = "ModelReady"
    MODEL_METADATA = "ModelMetadata"


_MODEL: Final = rb"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
# A new path adds a line here and a line in the handlers of v2.py.
_PATHS: Final = tuple(
    (re.compile(pattern), methods, action)
    for pattern, methods, action in (
        (_MODEL + rb"/infer", ("POST",), Action.INFER),
        (_MODEL + rb"/ready", ("GET",), Action.MODEL_READY),
        (_MODEL, ("GET",), Action.MODEL_METADATA),
        (rb"/v2/health/live", ("GET",), Action.SERVER_LIVE),
        (rb"/v2/health/ready", ("GET",), Action.SERVER_READY),
        (rb"/v2/?", ("GET",), Action.SERVER_METADATA),
    )
)


@dataclass(frozen=True, slots=True)
class Route:
    """An action on a model. `spec` has no signature, and its name is empty for an action on the server."""

    action: Action
    spec: ModelSpec


def parse_route(method: str, path: bytes) -> Route:
    """Return the route of an undecoded path.

    Raises:
        PathNotFound: the path is unknown.
        MethodNotAllowed: the path has no such method.
        InvalidArgument: the model's name is not UTF-8, or the version exceeds an int64.
    """
    if len(path) > _MAX_CACHED_PATH_BYTES:
        return _parse(method, path)
    return _parse_cached(method, path)


def _parse(method: str, path: bytes) -> Route:
    for pattern, methods, action in _PATHS:
        if match := pattern.fullmatch(path):
            if method not in methods:
                raise MethodNotAllowed
            return Route(action, _spec(match))
    raise PathNotFound


_parse_cached = lru_cache(maxsize=1024)(_parse)


def _spec(match: re.Match[bytes]) -> ModelSpec:
    found = match.groupdict()
    model, number = found.get("model"), found.get("version")
    if model is None:
        return ModelSpec("")
    try:
        name = unquote_to_bytes(model).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"model name '{model.decode(errors='replace')}' is not UTF-8") from None
    return ModelSpec(name, None if number is None else parse_version(number.decode()))
