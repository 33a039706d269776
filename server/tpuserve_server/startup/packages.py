"""Versions of the installed packages that decide how a server answers."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tpuserve_server.core.terms.server_state import Build

_PACKAGES: Final = (
    "tpuserve-server",
    "tpuserve-formats",
    "tensorflow",
    "ai-edge-litert",
    "openvino",
    "jax",
    "jaxlib",
    "libtpu",
    "numpy",
    "grpcio",
    "protobuf",
    "fastapi",
    "h2corn",
)


def installed_packages() -> dict[str, str]:
    """Return the version of each of these packages that is installed. Imports none of them."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def build_info() -> Build:
    """Return the versions of the server and of Python."""
    return Build(version("tpuserve-server"), platform.python_version())
