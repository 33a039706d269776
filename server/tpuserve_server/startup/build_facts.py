"""Facts about a server for its console: its flags that differ from their defaults, and versions of packages."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tpuserve_server.core.terms.server_state import Build
from tpuserve_server.core.terms.storage import without_secrets
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.protocols.console.sources import ChangedFlag
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


_OWN: Final = ("tpuserve-server", "tpuserve-formats")
_LIBRARIES: Final = (
    "numpy",
    "grpcio",
    "protobuf",
    "fastapi",
    "h2corn",
)


def installed_packages() -> dict[str, str]:
    """Return the version of each of these packages that is installed. Imports none of them."""
    found = {}
    runtimes = [name for plugin in executor_plugins() for name in plugin.runtime.distributions]
    for name in (*_OWN, *runtimes, *_LIBRARIES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def build_info() -> Build:
    """Return the versions of the server and of Python."""
    return Build(version("tpuserve-server"), platform.python_version())
