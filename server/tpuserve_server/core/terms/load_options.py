"""LoadOptions: how versions are loaded. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How versions are loaded: `threads` at a time, each for a limited time, with retries and a pause before each.

    The defaults are upstream's (model_servers/server.h), except for the threads and the time. Upstream's 0 threads mean
    the manager's own thread, and upstream has no limit of the time.
    """

    max_retries: Annotated[
        int,
        Setting("Models", "Maximum number of retries to load a version.", name="max_num_load_retries", at_least=0),
    ] = 5
    retry_interval_micros: Annotated[
        int,
        Setting(
            "Models",
            "Pause between attempts to load a version, in microseconds; a negative value is no pause.",
            name="load_retry_interval_micros",
        ),
    ] = 60_000_000
    threads: Annotated[
        int, Setting("Models", "Number of versions to load at the same time.", name="num_load_threads", at_least=0)
    ] = 4
    timeout_s: Annotated[
        float,
        Setting(
            "Models",
            "Time after which the server gives up a load, in seconds; 0: no limit.",
            name="load_timeout_seconds",
            page="time after which the server gives up a load, in seconds; 0: no limit "
            "([Failed loads](../how-to/serve/models.md#failed-loads))",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 1800

    @property
    def retry_interval_s(self) -> float:
        """Pause between two tries in seconds, at least 0."""
        return max(self.retry_interval_micros / 1e6, 0.0)
