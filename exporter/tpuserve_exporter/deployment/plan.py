"""The plan of a deployment: version, machine, needs of a server, replicas, and their cost."""

import math
from dataclasses import dataclass
from typing import Any, Final, Self

from tpuserve_exporter.deployment.capacity import Demand
from tpuserve_exporter.deployment.checked_version import CheckedVersion
from tpuserve_exporter.deployment.machines import GkeMachine
from tpuserve_exporter.options.tpu import GIB
from tpuserve_formats.price import Price, per_million

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Servers that each run `version` on one `machine`. `price` is that of a machine. `demand` is None without a rate.

    The autoscaler keeps `replicas` to `max_replicas` servers.

    cost of an hour                  = replicas * price per hour
    cost of a million predictions    = cost of an hour / (3,600 s * predictions/s) * 1,000,000

    A prediction is a row of a request, so predictions/s is the rate times the rows per request.
    """

    model: str
    version: CheckedVersion
    machine: GkeMachine
    replicas: int
    max_replicas: int
    demand: Demand | None
    price: Price | None

    @property
    def needs(self) -> ServerNeeds:
        return ServerNeeds.of(self.version)

    @property
    def cost_per_hour(self) -> float | None:
        return None if self.price is None else self.replicas * self.price.per_hour

    @property
    def per_million_predictions(self) -> float | None:
        """The cost at the rate of the demand, idle capacity included, or None without a price or a rate."""
        if self.cost_per_hour is None or self.demand is None:
            return None
        return per_million(self.cost_per_hour, self.demand.rate_per_s * self.demand.capacity.rows)

    @property
    def notes(self) -> list[str]:
        """Sentences on facts that the overlay cannot change."""
        version, demand = self.version, self.demand
        found = []
        if version.idle_devices:
            found.append(
                f"idle devices: {version.idle_devices} of {version.topology.machine_devices}, because the version was "
                f"checked with --mesh {version.mesh}. To use all of them, run `{version.check_command}`"
            )
        if version.side_by_side < 2:
            found.append(
                "two versions do not fit on a device together, so a server cannot load a new version next to the "
                "old one. Remove the old version from the volume first"
            )
        if demand is not None and demand.capacity.model != self.model:
            found.append(
                f"the load test measured the model {demand.capacity.model!r}, and the overlay serves {self.model!r}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        version, needs = self.version, self.needs
        return {
            "model": self.model,
            "version": version.number,
            "fingerprint": version.fingerprint,
            "topology": version.topology.name,
            "mesh": {"data": version.mesh.data, "model": version.mesh.model},
            "machine_type": self.machine.machine_type,
            "chips": self.machine.chips,
            "batch_sizes": list(version.batch_sizes),
            "hbm_bytes": {"needed": version.needed_bytes, "available": version.available_bytes},
            "side_by_side": version.side_by_side,
            "memory_gib": {"request": needs.request_gib, "limit": needs.limit_gib},
            "startup_s": needs.startup_s,
            "replicas": self.replicas,
            "max_replicas": self.max_replicas,
            "demand": None if self.demand is None else _demand_to_json(self.demand),
            "cost": None if self.price is None else self._cost_to_json(self.price),
            "notes": self.notes,
        }

    def _cost_to_json(self, price: Price) -> dict[str, Any]:
        return {
            "price_per_hour": price.per_hour,
            "currency": price.currency,
            "per_hour": self.cost_per_hour,
            "per_million_predictions": self.per_million_predictions,
        }


def _demand_to_json(demand: Demand) -> dict[str, Any]:
    return {
        "rate_per_s": demand.rate_per_s,
        "capacity_per_s": demand.capacity.requests_per_s,
        "rows_per_request": demand.capacity.rows,
        "terms": list(demand.capacity.terms),
        "for_load": demand.for_load,
        "headroom": demand.headroom,
        "utilization": demand.utilization,
    }
