"""What a batcher gets: a loaded version, and the parts that the batchers of a server share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.run_threads import RunThreads
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.tracer import SpanRecorder
from tpuserve_server.core.terms.types import ServableId


@dataclass(frozen=True, slots=True)
class BatchedVersion:
    """A loaded version, how requests for its signatures share batches, and the measured costs of its batches.

    Signatures without options run requests one by one. Each run updates `costs`.
    """

    servable_id: ServableId
    servable: Servable
    options: Mapping[str, BatchingOptions]
    costs: CostModel = field(default_factory=CostModel)


MetricsT_co = TypeVar("MetricsT_co", bound=BatchMetrics, covariant=True)


@dataclass(frozen=True, slots=True)
class DeviceServices(Generic[MetricsT_co]):
    """The parts that the batchers of a server share: the clock, the receiver of measurements, and the device.

    Without `device` and `threads`, each batcher has separate ones. `watchdog` finds runs that hang, and gets the loss
    of the device. `spans` gets the batches.
    """

    clock: WaitingClock
    metrics: MetricsT_co
    device: DeviceShare | None = None
    watchdog: Watchdog | None = None
    spans: SpanRecorder | None = None
    threads: RunThreads | None = None
