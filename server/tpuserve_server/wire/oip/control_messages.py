"""Control messages: trace and log settings, regions of shared memory and the model repository, over gRPC and in JSON.

Bodies over REST are small JSON objects, with Triton's messages for wrong ones. Sources: Triton's
server/docs/protocol/extension_model_repository.md, http_server.cc and grpc_server.cc.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tpuserve_formats.messages.oip import (
    LogSettingsRequest,
    LogSettingsResponse,
    ModelConfig,
    RepositoryIndexResponse,
    SystemSharedMemoryStatusResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.errors import Internal, InvalidArgument
from tpuserve_server.wire.json.body import without_mark
from tpuserve_server.wire.oip.inference import RegionStatus
from tpuserve_server.wire.oip.metadata import PLATFORM

_LISTS = frozenset({"trace_level"})


def sets_log(body: bytes) -> bool:
    """Return whether a LogSettingsRequest has settings. A malformed one may have some."""
    try:
        return bool(LogSettingsRequest.FromString(body).settings)
    except DecodeError:
        return True


def sets_trace(body: bytes) -> bool:
    """Return whether a TraceSettingRequest has settings. A malformed one may have some."""
    try:
        return bool(TraceSettingRequest.FromString(body).settings)
    except DecodeError:
        return True


def read_trace_settings(request: TraceSettingRequest) -> dict[str, object]:
    """Return the requested settings: a text, a list of texts, or None to restore the default.

    Raises:
        InvalidArgument: a setting with one value has several.
    """
    wanted: dict[str, object] = {}
    for name, setting in request.settings.items():
        values = list(setting.value)
        if name in _LISTS or not values:
            wanted[name] = values or None
        elif len(values) > 1:
            raise InvalidArgument(f"expect only 1 value for '{name}'")
        else:
            wanted[name] = values[0]
    return wanted


def encode_trace_settings(settings: Mapping[str, str | list[str]]) -> bytes:
    """Serialize a TraceSettingResponse."""
    response = TraceSettingResponse()
    for name, value in settings.items():
        response.settings[name].value.extend(value if isinstance(value, list) else [value])
    return response.SerializeToString()


def read_log_settings(request: LogSettingsRequest) -> dict[str, object]:
    """Return the requested settings. A setting without a value is None."""
    return {
        name: None if (choice := setting.WhichOneof("parameter_choice")) is None else getattr(setting, choice)
        for name, setting in request.settings.items()
    }


def encode_log_settings(settings: Mapping[str, bool | int | str]) -> bytes:
    """Serialize a LogSettingsResponse."""
    response = LogSettingsResponse()
    for name, value in settings.items():
        if isinstance(value, bool):
            response.settings[name].bool_param = value
        elif isinstance(value, int):
            response.settings[name].uint32_param = value
        else:
            response.settings[name].string_param = value
    return response.SerializeToString()


def encode_regions(regions: Iterable[RegionStatus]) -> bytes:
    """Serialize a SystemSharedMemoryStatusResponse."""
    response = SystemSharedMemoryStatusResponse()
    for region in regions:
        entry = response.regions[region.name]
        entry.name, entry.key, entry.offset, entry.byte_size = region
    return response.SerializeToString()


_FILE = "file:"
_CONFIG = "config"
_MOST_SHOWN = 64
# Fields of a configuration that may be present if they agree with the model.
_SAME = {"platform": ("", PLATFORM), "backend": ("", "tensorflow")}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a model, or a model without versions. Empty texts are unknown."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def encode_index(entries: Sequence[IndexEntry]) -> bytes:
    """Serialize a RepositoryIndexResponse."""
    models = [
        RepositoryIndexResponse.ModelIndex(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
        for entry in entries
    ]
    return RepositoryIndexResponse(models=models).SerializeToString()


def index_to_json(entries: Sequence[IndexEntry]) -> list[dict[str, str]]:
    """Build the REST response, which omits empty texts."""
    return [
        {
            name: text
            for name in ("name", "version", "state", "reason")
            if (text := getattr(entry, name)) or name == "name"
        }
        for entry in entries
    ]


def read_load_parameters(model: str, parameters: Mapping[str, str | bytes]) -> BatchingParameters | None:
    """Return the batching parameters that a load overrides, or None without an override.

    A `config` may set `max_batch_size`, and repeat the name and the platform.

    Raises:
        InvalidArgument: a parameter is unknown, or the configuration is malformed or sets another field.
        Internal: the request brings files. Triton's code for files that it cannot use.
    """
    for name in parameters:
        if name != _CONFIG and not name.startswith(_FILE):
            raise InvalidArgument(f"unrecognized load parameter '{name[:_MOST_SHOWN]}'.")
    files = [name for name in parameters if name.startswith(_FILE)]
    if files:
        raise Internal(
            f"failed to load '{model}', failed to poll from model repository: parameter '{files[0][:_MOST_SHOWN]}' is "
            "not supported, because this server loads models only from the base paths of its configuration"
        )
    text = parameters.get(_CONFIG)
    return None if text is None else _read_config(model, text)


def _read_config(model: str, text: str | bytes) -> BatchingParameters | None:
    config = ModelConfig()
    try:
        json_format.Parse(text, config, max_recursion_depth=32)
    # RecursionError and the others: the parser's reactions to some malformed texts.
    except (json_format.ParseError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise _refused(model, f"is not a ModelConfig in JSON: {str(error)[:256]}") from None
    for field, value in config.ListFields():
        allowed = ("", model) if field.name == "name" else _SAME.get(field.name, ())
        if field.name != "max_batch_size" and value not in allowed:
            raise _refused(model, f"can set only 'max_batch_size' on this server, got '{field.name}'")
    if config.max_batch_size < 0:
        raise _refused(model, f"sets 'max_batch_size' to {config.max_batch_size}, expected a positive number")
    return BatchingParameters(max_batch_size=config.max_batch_size) if config.max_batch_size else None


def _refused(model: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to load '{model}', failed to poll from model repository: load parameter '{_CONFIG}' {what}"
    )


JsonObject = Mapping[str, Any]
# The event loop parses a body in one step.
_MAX_BYTES: Final = 1 << 20
_MAX_UINT64: Final = (1 << 64) - 1


def parse_object(body: bytes, *, may_be_empty: bool = True) -> JsonObject:
    """Return the object in a body. An empty body is an empty object.

    Raises:
        InvalidArgument: the body is not an object, is too large, or is empty although it must not be.
    """
    body = without_mark(body)
    if not body and may_be_empty:
        return {}
    if len(body) > _MAX_BYTES:
        raise InvalidArgument(f"the body of this request may have at most {_MAX_BYTES} bytes; was {len(body)}")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument("failed to parse the request JSON buffer: expected an object")
    return document


def read_parameters(document: JsonObject) -> JsonObject:
    """Return the object `parameters`, empty if it is absent. Raises InvalidArgument."""
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise _wrong("parameters", "non-object as object")
    return parameters


def read_boolean(values: JsonObject, key: str) -> bool:
    """Return a boolean, False if it is absent. Raises InvalidArgument."""
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"Invalid value for '{key}': expected a boolean")
    return value


def read_texts(values: JsonObject) -> dict[str, str | bytes]:
    """Return an object whose values are all texts. Raises InvalidArgument."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise _wrong(name[:64], "non-string as string")
    return dict(values)


def read_text(values: JsonObject, key: str) -> str:
    """Return a text. Raises InvalidArgument."""
    value = values[key]
    if not isinstance(value, str):
        raise _wrong(key, "non-string as string")
    return value


def read_size(values: JsonObject, key: str) -> int:
    """Return an integer of at most 64 bits without sign. Raises InvalidArgument."""
    value = values[key]
    if type(value) is not int or not 0 <= value <= _MAX_UINT64:
        raise _wrong(key, "non-unsigned-integer as unsigned-integer")
    return value


def _wrong(key: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"Unable to parse '{key}': attempt to access JSON {what}")
