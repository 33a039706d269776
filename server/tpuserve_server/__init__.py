"""Batching inference server, a drop-in for TensorFlow Serving. The package imports its modules on first use.

Example::

    import tpuserve_server

    with tpuserve_server.start({"digits": "models/digits"}) as server:
        print(server.grpc_address, server.rest_address)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuserve_server.startup.running_server import RunningServer
    from tpuserve_server.startup.start import StartFailed, start

__all__ = ["start", "RunningServer", "StartFailed"]

_MODULES = {
    "start": "tpuserve_server.startup.start",
    "RunningServer": "tpuserve_server.startup.running_server",
    "StartFailed": "tpuserve_server.startup.start",
}


if not TYPE_CHECKING:  # With this function, a type checker would accept any name.

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
        """Import a public name on first use. The server's own processes import this package without using its names."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
