"""Flags of a server that differ from their defaults, as JSON without secrets."""

from typing import Any

from tpuserve_server.core.terms.storage import without_secrets
from tpuserve_server.protocols.console.server_facts import ChangedFlag
from tpuserve_server.startup.settings import Settings, flags


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
    return without_secrets(str(value))
