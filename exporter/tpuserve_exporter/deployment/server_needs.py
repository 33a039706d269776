"""Host memory of one server, and the time that it may take to start."""

import math
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_exporter.deployment.checked_version import CheckedVersion
from tpuserve_exporter.options.tpu_topology import GIB

# Startup without the version: the process, JAX and the driver of the TPU.
_PROCESS_S: Final = 120.0
# The server's machine may compile more slowly than the machine of the preflight, and with another libtpu.
_COMPILE_FACTOR: Final = 2.0
# Reading the version from a network volume. The server reads every file once for its hash.
_READ_BYTES_PER_S: Final = 50e6
# Host memory without the version, as in deploy/kubernetes/components/tpu: the process, libtpu and compilation.
_PROCESS_GIB: Final = 16
# The limit beyond the request, for requests and for caches of files.
_SPARE_GIB: Final = 16


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """The startup budget, and the request and the limit of host memory.

    startup budget = 120 s + 2 * compile times of all programs, one after another + size of all files / (50 MB/s)
    memory request = 16 GiB + bytes that the server reads into host memory, rounded up to whole GiB
    memory limit   = memory request + 16 GiB

    The constants are allowances and not measurements of a TPU machine. A budget that is too long only delays the report
    of a failed rollout.
    """

    process_s: float
    compile_s: float
    read_s: float
    request_gib: int

    @classmethod
    def of(cls, version: CheckedVersion) -> Self:
        return cls(
            process_s=_PROCESS_S,
            compile_s=_COMPILE_FACTOR * version.compile_s,
            read_s=version.size_bytes / _READ_BYTES_PER_S,
            request_gib=_PROCESS_GIB + math.ceil(version.host_bytes / GIB),
        )

    @property
    def startup_s(self) -> int:
        """The startup budget, rounded up to whole seconds."""
        return math.ceil(self.process_s + self.compile_s + self.read_s)

    @property
    def limit_gib(self) -> int:
        return self.request_gib + _SPARE_GIB
