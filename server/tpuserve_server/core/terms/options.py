"""Options of models: loads, reloads, response cache, watchdog. Light imports only: the command line uses it."""

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


@dataclass(frozen=True, slots=True)
class ReloadOptions:
    """Directories and URIs that reload requests may use. An empty tuple means those of the start.

    Raises:
        InvalidArgument: a directory is relative.
    """

    model_roots: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Directories and URIs, such as gs://bucket/models, in which reload requests may name base paths.",
            name="reload_roots",
            shown_default="the parents of the base paths at the start, and MODEL_BASE_PATH",
            page="directories and URIs, such as `gs://bucket/models`, in which "
            "[reload requests](limits.md#paths-of-a-reload) may name base paths, separated by commas",
            page_default="the parents of the base paths at the start, and `$MODEL_BASE_PATH`",
        ),
    ] = ()
    log_roots: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Directories in which reload requests may name prefixes of request logs.",
            name="reload_log_roots",
            shown_default="those of the request logs at the start",
            page="directories in which [reload requests](limits.md#paths-of-a-reload) may name prefixes of request "
            "logs, separated by commas",
            page_default="those of the request logs at the start",
        ),
    ] = ()

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

    max_bytes: Annotated[
        int,
        Setting(
            "Models",
            "Maximum memory for the responses that the server keeps of each model, to answer equal requests without a "
            "run; 0 keeps none. response_cache in a model's configuration overrides it.",
            name="response_cache_max_bytes",
            page="maximum memory for the responses that the server keeps of each model; 0 keeps none. `response_cache` "
            "in a model's configuration overrides it ([Response cache](../how-to/serve/response-cache.md))",
            at_least=0,
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """Limits of a model's run in seconds; 0: none.

    After `run_timeout_s` the server counts the run as hung. Another `replace_after_s` later, the process that serves
    should be replaced.
    """

    run_timeout_s: Annotated[
        float,
        Setting(
            "Operations",
            "Time after which a run of a model on its device counts as hung, in seconds; 0: never.",
            name="run_timeout_seconds",
            page="time after which a run of a model on its device counts as hung, in seconds; 0: never "
            "([Hung runs](../how-to/operate/run.md#hung-runs))",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 300
    replace_after_s: Annotated[
        float,
        Setting(
            "Operations",
            "Time that a hung run has left to end, in seconds; the server then drains and starts a new process. 0: "
            "never.",
            name="replace_hung_after_seconds",
            page="time that a hung run has left to end, in seconds; the server then drains and starts a new "
            "process; 0: never ([Hung runs](../how-to/operate/run.md#hung-runs))",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 60
