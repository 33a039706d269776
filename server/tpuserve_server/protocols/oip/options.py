"""Options of the Open Inference Protocol. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated, Final

from tpuserve_server.core.terms.setting import Setting

SERVER_NAME: Final = "tpuserve"


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Options of the server's metadata."""

    server_name: Annotated[
        str,
        Setting(
            "Operations",
            "Name of the server in the Open Inference Protocol. Some tools for Triton expect `triton`.",
            name="oip_server_name",
        ),
    ] = SERVER_NAME


@dataclass(frozen=True, slots=True)
class SharedMemoryOptions:
    """Options of the system shared memory extension."""

    prefixes: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Prefixes of POSIX shared memory keys that clients may register; empty disables shared memory.",
            name="shared_memory_prefix",
            shown_default="none",
        ),
    ] = ()
