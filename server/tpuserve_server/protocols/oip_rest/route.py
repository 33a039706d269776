"""Parser for paths under /v2, with Triton's rules (server, http_server.cc): case and slashes count."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from tpuserve_server.access.access import CONTROL, CONTROL_SERVER, DESCRIBE, OPEN, PREDICT, READ, Access
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.status import MethodNotAllowed, PathNotFound
from tpuserve_server.wire.oip.inference import parse_version

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
    MODEL_CONFIG = "ModelConfig"
    MODEL_STATISTICS = "ModelStatistics"
    REPOSITORY_INDEX = "RepositoryIndex"
    MODEL_LOAD = "RepositoryModelLoad"
    MODEL_UNLOAD = "RepositoryModelUnload"
    TRACE_SETTING = "TraceSetting"
    LOG_SETTINGS = "LogSettings"
    SHARED_MEMORY_STATUS = "SystemSharedMemoryStatus"
    SHARED_MEMORY_REGISTER = "SystemSharedMemoryRegister"
    SHARED_MEMORY_UNREGISTER = "SystemSharedMemoryUnregister"
    CUDA_STATUS = "CudaSharedMemoryStatus"
    CUDA_REGISTER = "CudaSharedMemoryRegister"
    CUDA_UNREGISTER = "CudaSharedMemoryUnregister"


_MODEL: Final = rb"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY: Final = rb"/v2/repository(?:/(?P<repository>[^/]+))?"
_SYSTEM: Final = rb"/v2/systemsharedmemory(?:/region/(?P<region>[^/]+))?"
_CUDA: Final = rb"/v2/cudasharedmemory(?:/region/(?P<region>[^/]+))?"
# Pattern, method, action, and what it needs of its client. A new path adds a line here, an Action, a handler in v2.py
# or administration.py, and an entry in openapi.py or openapi_administration.py.
PATHS: Final = tuple(
    (re.compile(pattern), method, action, access)
    for pattern, method, action, access in (
        (_MODEL + rb"/infer", "POST", Action.INFER, PREDICT),
        (_MODEL + rb"/ready", "GET", Action.MODEL_READY, DESCRIBE),
        # Triton has no model of this name either.
        (rb"/v2/models/stats", "GET", Action.MODEL_STATISTICS, READ),
        (_MODEL, "GET", Action.MODEL_METADATA, DESCRIBE),
        (_MODEL + rb"/config", "GET", Action.MODEL_CONFIG, READ),
        (_MODEL + rb"/stats", "GET", Action.MODEL_STATISTICS, READ),
        (rb"/v2/models/(?P<model>[^/]+)/trace/setting", "GET", Action.TRACE_SETTING, READ),
        (rb"/v2/models/(?P<model>[^/]+)/trace/setting", "POST", Action.TRACE_SETTING, CONTROL),
        (rb"/v2/trace/setting", "GET", Action.TRACE_SETTING, READ),
        (rb"/v2/trace/setting", "POST", Action.TRACE_SETTING, CONTROL_SERVER),
        (rb"/v2/logging", "GET", Action.LOG_SETTINGS, READ),
        (rb"/v2/logging", "POST", Action.LOG_SETTINGS, CONTROL_SERVER),
        (_REPOSITORY + rb"/index", "POST", Action.REPOSITORY_INDEX, READ),
        (_REPOSITORY + rb"/models/(?P<model>[^/]+)/load", "POST", Action.MODEL_LOAD, CONTROL),
        (_REPOSITORY + rb"/models/(?P<model>[^/]+)/unload", "POST", Action.MODEL_UNLOAD, CONTROL),
        # Shared memory is for clients on the server's machine alone, and the keys of regions are for their owners.
        (_SYSTEM + rb"/status", "GET", Action.SHARED_MEMORY_STATUS, CONTROL_SERVER),
        (_SYSTEM + rb"/register", "POST", Action.SHARED_MEMORY_REGISTER, CONTROL_SERVER),
        (_SYSTEM + rb"/unregister", "POST", Action.SHARED_MEMORY_UNREGISTER, CONTROL_SERVER),
        # There are no such regions: these answer the same to each client.
        (_CUDA + rb"/status", "GET", Action.CUDA_STATUS, READ),
        (_CUDA + rb"/register", "POST", Action.CUDA_REGISTER, READ),
        (_CUDA + rb"/unregister", "POST", Action.CUDA_UNREGISTER, READ),
        (rb"/v2/health/live", "GET", Action.SERVER_LIVE, OPEN),
        (rb"/v2/health/ready", "GET", Action.SERVER_READY, OPEN),
        (rb"/v2/?", "GET", Action.SERVER_METADATA, READ),
    )
)


@dataclass(frozen=True, slots=True)
class Route:
    """An action on a model. `spec` has no signature, and its name is empty for an action on the server.

    `access` is what the action needs of its client. `region` and `repository` are None for a path without them.
    """

    action: Action
    spec: ModelSpec
    access: Access
    region: str | None = None
    repository: str | None = None


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
    is_known = False
    for pattern, its_method, action, access in PATHS:
        if match := pattern.fullmatch(path):
            is_known = True
            if method == its_method:
                found = match.groupdict()
                return Route(action, _spec(match), access, _text(found, "region"), _text(found, "repository"))
    raise MethodNotAllowed if is_known else PathNotFound


_parse_cached = lru_cache(maxsize=1024)(_parse)


def _spec(match: re.Match[bytes]) -> ModelSpec:
    found = match.groupdict()
    model, number = found.get("model"), found.get("version")
    if model is None:
        return ModelSpec("")
    name = _decode(model, "model name")
    return ModelSpec(name, None if number is None else parse_version(number.decode()))


def _text(found: Mapping[str, bytes | None], group: str) -> str | None:
    raw = found.get(group)
    return None if raw is None else _decode(raw, f"{group} name")


def _decode(raw: bytes, what: str) -> str:
    try:
        return shown(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise InvalidArgument(f"{what} '{shown(raw.decode(errors='replace'))}' is not UTF-8") from None
