"""Trace and log settings. Clients can read them. They cannot change them, because the server's operator sets them.

Source: Triton's extension_trace.md and extension_logging.md in server/docs/protocol.
"""

import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import NotFound, Unimplemented

Setting: TypeAlias = bool | int | str | list[str]

# Triton's defaults. The server records no traces in Triton's form.
TRACE_SETTINGS: Final[Mapping[str, list[str] | str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_FILES: Final = {"trace_file": "trace file location", "log_file": "log file location"}


def trace_settings(service: InferenceService, model: str) -> Mapping[str, list[str] | str]:
    """Return the settings of a model, or of the server for an empty name.

    Raises:
        PermissionDenied: the client may not use the model.
        NotFound: the model is unknown.
    """
    if model:
        service.check_access(model)
    if model and model not in service.models():
        raise NotFound(f"Request for unknown model: '{model}' is not found")
    return TRACE_SETTINGS


def log_settings() -> Mapping[str, bool | int | str]:
    """Return the levels that the server logs. It logs to stderr."""
    level = logging.getLogger().getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def check_unchanged(current: Mapping[str, Setting], wanted: Mapping[str, object]) -> None:
    """Check that a request changes no setting. None means no change, and unknown names are ignored, as in Triton.

    Raises:
        Unimplemented: the request sets a file, or would change a setting.
    """
    for name, value in wanted.items():
        if name in _FILES and value is not None and value != current.get(name):
            raise Unimplemented(f"{_FILES[name]} can not be updated through network protocol")
        if name in current and value is not None and value != current[name]:
            raise Unimplemented(
                f"setting '{name}' can not be updated through network protocol: it is {current[name]!r}, and the "
                "server's operator sets it at the start"
            )
