"""Options of the Open Inference Protocol. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.setting import Setting


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
            page="prefixes of the POSIX shared memory keys that clients may register for tensors, separated by commas; "
            "empty disables [shared memory](open-inference-protocol.md#shared-memory)",
        ),
    ] = ()
