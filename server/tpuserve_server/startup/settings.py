"""Settings of `tpuserve serve`: the options of every part, from flags, the environment or `start`.

A field of an options class declares each flag (`core/terms/setting.py`). This module imports no heavy modules, because
the supervisor and `tpuserve_server.start` import it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self, get_args, get_origin

from tpuserve_server.access.options import IdentityOptions
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.terms.options import (
    LoadOptions,
    ReloadOptions,
    ResidencyOptions,
    ResponseCacheOptions,
    WatchdogOptions,
)
from tpuserve_server.core.terms.setting import Section, Setting
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.executors.plugin import ExecutorOptions, SafetyOptions
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.observe.options import AccessLogOptions, MetricsOptions, RequestLogOptions, Rotation
from tpuserve_server.observe.tracing.options import TracingOptions
from tpuserve_server.protocols.options import (
    ConsoleOptions,
    ControlOptions,
    MetadataOptions,
    SharedMemoryOptions,
)
from tpuserve_server.startup.flag_help import HELP, SHOWN_DEFAULTS
from tpuserve_server.startup.server_settings import (
    BatchingSource,
    ListeningSettings,
    ModelSettings,
    ServerSettings,
    StorageSettings,
)
from tpuserve_server.versions.warmup_options import WarmupOptions

# Environment variable in which the supervisor passes the settings to the serving process.
SETTINGS_VARIABLE = "TPUSERVE_EMBEDDED_SETTINGS"


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of every part. `--help` lists their flags in this order within each section."""

    listening: ListeningSettings
    budgets: BudgetOptions
    models: ModelSettings
    loading: LoadOptions
    residency: ResidencyOptions
    response_cache: ResponseCacheOptions
    batching_source: BatchingSource
    batching: BatchingParameters
    executors: ExecutorOptions
    storage: StorageSettings
    warmup: WarmupOptions
    server: ServerSettings
    metadata: MetadataOptions
    shared_memory: SharedMemoryOptions
    metrics: MetricsOptions
    access_log: AccessLogOptions
    request_log: RequestLogOptions
    rotation: Rotation
    tracing: TracingOptions
    host: HostOptions
    watchdog: WatchdogOptions
    control: ControlOptions
    console: ConsoleOptions
    reload: ReloadOptions
    identity: IdentityOptions

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from checked values, one for each flag.

        Raises:
            ServingError: values of one part conflict.
        """
        made = {options: make_options(options, values) for options in option_classes()}
        executors = ExecutorOptions(tuple(made[options] for options in _executor_options()))
        groups: dict[Any, Any] = {**made, ExecutorOptions: executors}
        return cls(**{field.name: groups[field.type] for field in dataclasses.fields(cls)})

    def values(self) -> dict[str, Any]:
        """Return the value of each flag by name."""
        groups = [getattr(self, field.name) for field in dataclasses.fields(self)]
        by_class = {type(each): each for each in (*groups, *self.executors.groups)}
        return {flag.name: getattr(by_class[flag.options], flag.field) for flag in flags()}


@dataclass(frozen=True, slots=True)
class Flag:
    """Flag: the field `field` of the class `options`, with the type and the default of that field."""

    name: str
    options: type[Any]
    field: str
    type: Any  # a type expression
    default: Any  # the value of any setting
    setting: Setting

    @property
    def help(self) -> str:
        """The line of `--help`."""
        return self.setting.help or HELP[self.name]

    @property
    def shown_default(self) -> str | None:
        """The default in words, or None if the value is clear."""
        return self.setting.shown_default or SHOWN_DEFAULTS.get(self.name)


@cache
def flags() -> tuple[Flag, ...]:
    """Return every flag, in the order of `--help`. Raises ValueError if two executors declare one flag."""
    declared: dict[str, Flag] = {}
    for flag in (flag for options in option_classes() for flag in _flags_of(options)):
        other = declared.setdefault(flag.name, flag)
        if other is not flag:
            both = " and ".join(f"{one.options.__module__}.{one.options.__qualname__}" for one in (other, flag))
            raise ValueError(f"{both} declare the flag --{flag.name}. Rename the option of the executor.")
    sections = get_args(Section)
    return tuple(sorted(declared.values(), key=lambda flag: sections.index(flag.setting.section)))


def option_classes() -> Iterator[Any]:
    """Yield the class of each group of options."""
    for field in dataclasses.fields(Settings):
        if field.type is ExecutorOptions:
            yield from _executor_options()
        else:
            yield field.type


def make_options(options: type[Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any options
    """Create one group of options from the values of its flags. Raises ServingError as the options' class does."""
    return options(**{flag.field: values[flag.name] for flag in flags() if flag.options is options})


def _executor_options() -> tuple[type[Any], ...]:
    return (*(plugin.options for plugin in executor_plugins()), SafetyOptions)


def _flags_of(options: type[Any]) -> Iterator[Flag]:
    for field in dataclasses.fields(options):
        if get_origin(field.type) is Annotated:
            kind, setting = get_args(field.type)
            yield Flag(setting.name or field.name, options, field.name, kind, field.default, setting)
