"""TaskQueue: the queue of a loaded version, as requests use it: a Batcher, or the link to one in another process."""

from collections.abc import Sequence
from typing import Protocol

from tpuserve_server.core.batching.finish_forecast import FinishForecast
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.queue_depth import QueueDepth
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.priority import Priority


class Refusing(Protocol):
    """See Refusals for each method."""

    @property
    def is_active(self) -> bool: ...

    def check(self, signature_name: str, deadline: Deadline, priority: Priority) -> None: ...

    def lateness_s(self, deadline: Deadline, now_s: float) -> float: ...

    def forecast(self) -> FinishForecast | None: ...


class TaskQueue(Protocol):
    """See Batcher for each method."""

    @property
    def default_rows(self) -> int: ...

    @property
    def refusals(self) -> Refusing: ...

    def batches(self, signature_name: str) -> bool: ...

    def options(self, signature_name: str) -> BatchingOptions | None: ...

    def has_objective(self, signature_name: str) -> bool: ...

    def record_latency(self, signature_name: str, latency_s: float) -> None: ...

    def submit(self, task: Task) -> None: ...

    def submit_all(self, tasks: Sequence[Task]) -> list[tuple[Task, ServingError]]: ...

    def discard(self, task: Task, reason: str) -> bool: ...

    def queued(self) -> dict[str, QueueDepth]: ...

    def hung_s(self) -> float: ...

    def stop(self) -> None: ...
