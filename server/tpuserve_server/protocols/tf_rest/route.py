"""Parser for paths under /v1/ (tensorflow_serving/model_servers/http_rest_api_util.cc)."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from tpuserve_server.access.access import DESCRIBE, OPEN, PREDICT, READ, Access
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import ModelSpec

_VERSION_OR_LABEL = rb"(?:(?:/versions/([0-9]+))|(?:/labels/([^/:]+)))?"
_POST = re.compile(rb"/v1/models/([^/:]+)" + _VERSION_OR_LABEL + rb":(classify|regress|predict)", re.IGNORECASE)
_GET = re.compile(rb"/v1/models(?:/([^/:]+)" + _VERSION_OR_LABEL + rb"(/metadata)?)?", re.IGNORECASE)
_MAX_INT64 = (1 << 63) - 1
# Longer paths are not cached, so that clients cannot fill memory with long ones.
_MAX_CACHED_PATH_BYTES = 512


class Action(enum.Enum):
    """The requested operation. The value is the method's name in metrics."""

    PREDICT = "Predict"
    CLASSIFY = "Classify"
    REGRESS = "Regress"
    STATUS = "GetModelStatus"
    METADATA = "GetModelMetadata"
    LIST = "ListModels"
    PREFLIGHT = "Preflight"


_ACCESS: Final[Mapping[Action, Access]] = {
    Action.PREDICT: PREDICT,
    Action.CLASSIFY: PREDICT,
    Action.REGRESS: PREDICT,
    Action.STATUS: READ,
    Action.METADATA: DESCRIBE,
    Action.LIST: READ,
    # Browsers send it without credentials. Its answer is the same for every path.
    Action.PREFLIGHT: OPEN,
}


@dataclass(frozen=True, slots=True)
class Route:
    """An action on a model. `spec` has no signature, and its name is empty for LIST and PREFLIGHT."""

    action: Action
    spec: ModelSpec

    @property
    def access(self) -> Access:
        """The access that the action needs."""
        return _ACCESS[self.action]


def parse_route(method: str, path: bytes) -> Route:
    """Return the route of an undecoded path. Case is ignored outside names. Raises InvalidArgument."""
    if len(path) > _MAX_CACHED_PATH_BYTES:
        return _parse(method, path)
    return _parse_cached(method, path)


def _parse(method: str, path: bytes) -> Route:
    if method == "POST" and (match := _POST.fullmatch(path)):
        name, version, label, action = match.groups()
        return Route(Action[action.decode().upper()], _spec(name, version, label))
    if method == "GET" and (match := _GET.fullmatch(path)):
        name, version, label, metadata = match.groups()
        if name is None:
            return Route(Action.LIST, ModelSpec(""))
        return Route(Action.METADATA if metadata else Action.STATUS, _spec(name, version, label))
    if method == "OPTIONS":
        return Route(Action.PREFLIGHT, ModelSpec(""))
    raise InvalidArgument(f"Malformed request: {method} {shown(path.decode(errors='replace'))}")


_parse_cached = lru_cache(maxsize=1024)(_parse)


def _spec(name: bytes, version: bytes | None, label: bytes | None) -> ModelSpec:
    return ModelSpec(
        _decode(name, "model name"),
        version=None if version is None else _decode_version(version),
        version_label=None if label is None else _decode(label, "model version label"),
    )


def _decode(text: bytes, what: str) -> str:
    try:
        return shown(unquote_to_bytes(text).decode())
    except UnicodeDecodeError:
        raise InvalidArgument(f"Failed to decode {what}:{shown(text.decode(errors='replace'))}") from None


def _decode_version(digits: bytes) -> int:
    # Python refuses to convert thousands of digits. An int64 has at most 19 without leading zeros.
    significant = digits.lstrip(b"0") or b"0"
    if len(significant) > len(str(_MAX_INT64)) or int(significant) > _MAX_INT64:
        raise InvalidArgument(f"Failed to convert version: {shown(digits.decode())} to numeric.")
    return int(significant)
