"""Flags of a server that differ from their defaults, as JSON without secrets."""

import re
from typing import Any, Final

from tpuserve_server.command.settings import Settings, flags
from tpuserve_server.frontends.console.server_facts import ChangedFlag

# User and password of a URI, and its query, which may have a key or a signature (RFC 3986).
_USER: Final = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY: Final = re.compile(r"(?<=\?)\S+")
_HIDDEN: Final = "***"


def changed_flags(settings: Settings) -> tuple[ChangedFlag, ...]:
    """Return the flags with another value than their default, in the order of `--help`."""
    values = settings.values()
    return tuple(
        ChangedFlag(flag.name, _shown(values[flag.name]), _shown(flag.default))
        for flag in flags()
        if values[flag.name] != flag.default
    )


def _shown(value: Any) -> Any:  # noqa: ANN401 - the value of any setting
    """Return a value as JSON. A number, a truth value and None stay as they are."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(one) for one in value]
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    return _QUERY.sub(_HIDDEN, _USER.sub(f"{_HIDDEN}@", text))
