"""Options of models: loads, reloads, response cache, watchdog. Light imports only: the command line uses it."""

import enum
from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_path
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How versions are loaded: `threads` at a time, each for a limited time, with retries and a pause before each.

    The defaults are upstream's (model_servers/server.h), except for the threads and the time. Upstream's 0 threads mean
    the manager's own thread, and upstream has no limit of the time.
    """

    max_retries: Annotated[int, Setting("Models", name="max_num_load_retries", at_least=0)] = 5
    retry_interval_micros: Annotated[int, Setting("Models", name="load_retry_interval_micros")] = 60_000_000
    threads: Annotated[int, Setting("Models", name="num_load_threads", at_least=0)] = 4
    timeout_s: Annotated[float, Setting("Models", name="load_timeout_seconds", at_least=0, at_most=MAX_WAIT_S)] = 1800

    @property
    def retry_interval_s(self) -> float:
        """Pause between two tries in seconds, at least 0."""
        return max(self.retry_interval_micros / 1e6, 0.0)


class LoadPolicy(enum.StrEnum):
    """When the versions of a model load: as soon as they are there, and they stay, or at the first request."""

    ALWAYS = "always"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True)
class ResidencyOptions:
    """Which models are in memory.

    `load_policy` is that of the models whose configuration has none. A model that loads on demand unloads
    `idle_unload_s` seconds after its last request; 0: never. It also unloads if another model would exceed
    `model_memory_bytes`, the limit of the memory of all versions; 0: none.
    """

    load_policy: Annotated[LoadPolicy, Setting("Models")] = LoadPolicy.ALWAYS
    idle_unload_s: Annotated[float, Setting("Models", name="idle_unload_seconds", at_least=0, at_most=MAX_WAIT_S)] = 0
    model_memory_bytes: Annotated[int, Setting("Models", at_least=0)] = 0


@dataclass(frozen=True, slots=True)
class ReloadOptions:
    """Directories and URIs that reload requests may use. An empty tuple means those of the start.

    Raises:
        InvalidArgument: a directory is relative.
    """

    model_roots: Annotated[tuple[str, ...], Setting("Operations", name="reload_roots")] = ()
    log_roots: Annotated[tuple[str, ...], Setting("Operations", name="reload_log_roots")] = ()

    def __post_init__(self) -> None:
        for root in (*self.model_roots, *self.log_roots):
            check_path("The root", root)
        if relative := [root for root in self.model_roots if not root.startswith("/") and "://" not in root]:
            raise InvalidArgument(f"reload_roots must be absolute paths or URIs; was {relative[0]!r}")
        if relative := [root for root in self.log_roots if not root.startswith("/")]:
            raise InvalidArgument(f"reload_log_roots must be absolute paths; was {relative[0]!r}")


@dataclass(frozen=True, slots=True)
class ResponseCacheOptions:
    """The bound of the response cache of each model whose configuration has none. 0: no cache."""

    max_bytes: Annotated[int, Setting("Models", name="response_cache_max_bytes", at_least=0)] = 0


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """Limits of a model's run in seconds; 0: none.

    After `run_timeout_s` the server counts the run as hung. Another `replace_after_s` later, the process that serves
    should be replaced.
    """

    run_timeout_s: Annotated[
        float, Setting("Operations", name="run_timeout_seconds", at_least=0, at_most=MAX_WAIT_S)
    ] = 300
    replace_after_s: Annotated[
        float, Setting("Operations", name="replace_hung_after_seconds", at_least=0, at_most=MAX_WAIT_S)
    ] = 60
