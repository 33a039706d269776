"""Trace settings, log settings and regions of shared memory over gRPC."""

from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from tpuserve_formats.messages.oip import (
    LogSettingsRequest,
    LogSettingsResponse,
    SystemSharedMemoryStatusResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.oip.region import RegionStatus

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
