"""Versions of the installed packages that decide how a server answers."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tpuserve_server.core.terms.server_state import Build
from tpuserve_server.executors.catalogue import executor_plugins

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
