"""Number of front-end processes, from the flag, the cores and the host."""

import math
import os
import sys
from dataclasses import replace
from typing import Final

from tpuserve_server.command.listening_settings import FrontEnds
from tpuserve_server.command.settings import Settings
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.selection import Selection

# The engine has a thread for its event loop and threads that run models.
_ENGINE_CORES: Final = 2
# A front-end has a thread that parses HTTP, and one that runs Python.
_FRONT_END_CORES: Final = 2
# One engine has work for about this many small requests at a time. More front-ends only take memory.
MOST_AUTOMATIC: Final = 16


def front_end_count(requested: FrontEnds, selection: Selection, options: HostOptions) -> int:
    """Return the number of front-end processes. 1: one process receives requests and runs models.

    Raises:
        HostError: several are requested, but not possible with the selected host, system or options.
    """
    obstacle = _obstacle(selection, options)
    if requested == "auto":
        return 1 if obstacle else automatic_count(len(_usable_cores()))
    if requested > 1 and obstacle:
        raise HostError(f"--frontends={requested} {obstacle}, or set --frontends=1.")
    return requested


def front_end_processes(settings: Settings) -> int:
    """Return the number of processes in the settings of a process of the server, which are those of `front_end_count`.

    `auto` means 1 there: an application that builds a server itself has one process.
    """
    count = settings.listening.frontends
    return 1 if count == "auto" else count


def automatic_count(cores: int) -> int:
    """Return the number for `auto`."""
    return min(max((cores - _ENGINE_CORES) // _FRONT_END_CORES, 1), MOST_AUTOMATIC)


def with_front_ends(options: HostOptions, count: int) -> HostOptions:
    """Divide the limits of the server among `count` front-ends."""
    return replace(
        options,
        frontends=count,
        max_connections=math.ceil(options.max_connections / count),
        max_requests_per_s=options.max_requests_per_s / count,
        max_heap_bytes=math.ceil(options.max_heap_bytes / count),
    )


def _obstacle(selection: Selection, options: HostOptions) -> str:
    """Return why there can be only one process, as the end of a sentence without a full stop, or ""."""
    if selection.backend != "envoy":
        return f"needs the Envoy host, but the host is {selection.backend} ({selection.reason}). Use Envoy"
    if sys.platform != "linux":
        return "works on Linux only: other systems do not share a port among processes. Use Linux"
    if options.grpc_port is None and options.rest_port is None:
        return "needs a port: only one process can listen on a UNIX socket. Set a port"
    if options.rest_server == "python":
        return "and --rest_server=python exclude each other: front-ends share the REST port in Envoy. Omit one"
    if options.reuse_port:
        return "and --reuse_port exclude each other: the kernel can direct connections to one process only. Omit one"
    return ""


def _usable_cores() -> set[int]:
    return os.sched_getaffinity(0)
