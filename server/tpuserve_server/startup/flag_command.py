"""Click command for the flags, with TensorFlow Serving's flag syntax, and notices."""

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from tpuserve_server.core.terms.setting import Section
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.startup.flag_help import COMMON_FLAGS
from tpuserve_server.startup.help_levels import HelpGroup, LeveledCommand
from tpuserve_server.startup.settings import Flag, flags
from tpuserve_server.startup.validation import flag_text, profile_values


@dataclass(frozen=True, slots=True)
class UnneededFlag:
    """TensorFlow Serving's flag without effect here. The command accepts it, and prints an alternative."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    instead: str
    # The value that this server always has. The command prints no line for it.
    fixed_value: bool | None = None
    # Whether the command fails with the same line, because the server must not run without the flag's effect.
    refused: bool = False


UNNEEDED = (
    UnneededFlag(
        "rest_api_num_threads", int, "One event loop handles all REST requests; the server has no thread pool."
    ),
    UnneededFlag("grpc_max_threads", int, "One event loop handles all gRPC calls; the server has no thread pool."),
    UnneededFlag("enable_grpc_healthcheck_service", bool, "The server always serves grpc.health.v1.", fixed_value=True),
    UnneededFlag("use_alts_credentials", bool, "Use --ssl_config_file.", fixed_value=False, refused=True),
    UnneededFlag("num_unload_threads", int, "The server unloads a version when its last request has finished."),
    UnneededFlag("flush_filesystem_caches", bool, "The server does not flush the kernel's file cache."),
    UnneededFlag(
        "platform_config_file",
        str,
        "Use --batching_parameters_file, --tensorflow_session_config_file and --saved_model_tags.",
    ),
    UnneededFlag("per_process_gpu_memory_fraction", float, "TensorFlow runs models on the CPU only."),
    UnneededFlag("thread_pool_factory_config_file", str, "Use --tensorflow_intra_op_parallelism."),
    UnneededFlag(
        "remove_unused_fields_from_bundle_metagraph",
        bool,
        "The server always releases a graph after loading it.",
        fixed_value=True,
    ),
    UnneededFlag(
        "xla_cpu_compilation_enabled", bool, "XLA always compiles the functions that request it.", fixed_value=True
    ),
    UnneededFlag("xla_gpu_compilation_enabled", bool, "TensorFlow runs models on the CPU only.", fixed_value=False),
    UnneededFlag(
        "num_tflite_interpreters_per_pool", int, "One interpreter runs a whole batch. Use --num_tflite_pools."
    ),
    UnneededFlag("skip_initialize_tpu", bool, "TensorFlow never initializes a TPU in this server.", fixed_value=True),
)


# Longer than TPUSERVE: for a Service named tpuserve, Kubernetes sets TPUSERVE_PORT=tcp://… in every pod.
ENVIRONMENT_PREFIX = "TPUSERVE_SERVE"
# Key in the context of the command.
_NOTICES = f"{__name__}.notices"
# The flag that selects the defaults of others.
_PROFILE = "profile"


class _Sizes(click.ParamType[tuple[int, ...]]):
    """Sizes with commas, such as `1,8,32`."""

    name = "n,n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:  # noqa: ANN401 - click's signature
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected a list of whole numbers such as 1,8,32, got {value!r}", param, ctx)


class ServeCommand(LeveledCommand):
    """A command whose `--help` ends with the installed runtimes, examples and exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the runtimes, and the rest of the help."""
        with formatter.section("Installed runtimes"):
            formatter.write_dl([(plugin.runtime.name, plugin.runtime.state) for plugin in executor_plugins()])
        super().format_epilog(ctx, formatter)


def serve_command(callback: Callable[..., None], epilog: str) -> ServeCommand:
    """Build the command. `callback` gets a value for each flag of Settings; its docstring is the command's help."""
    needed = [_option(flag) for flag in flags()]
    sections = [
        HelpGroup(title.lower(), title, [flag.name for flag in flags() if flag.setting.section == title])
        for title in get_args(Section)
    ]
    upstream = HelpGroup(
        "tensorflow-serving", "TensorFlow Serving's flags without effect", [flag.name for flag in UNNEEDED]
    )
    return ServeCommand(
        "serve",
        callback=callback,
        params=[*needed, *(_unneeded_option(flag) for flag in UNNEEDED), _check_option(), _version_option()],
        help=callback.__doc__,
        epilog=epilog,
        groups=[*sections, upstream],
        common=COMMON_FLAGS.split(),
        context_settings={
            "auto_envvar_prefix": ENVIRONMENT_PREFIX,
            "show_default": True,
            "max_content_width": 110,
            "help_option_names": ["-h", "--help"],
        },
    )


def notices() -> list[str]:
    """Return a sentence for each flag of the current command that has no effect."""
    found: list[str] = click.get_current_context().meta.get(_NOTICES, [])
    return found


def source_variable(ctx: click.Context, name: str) -> str:
    """Return the environment variable that set a flag, or "" if none did."""
    if ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT:
        return ""
    [flag] = [flag for flag in flags() if flag.name == name]
    return next((variable for variable in _variables(flag) if os.environ.get(variable)), "")


class _FlagOption(click.Option):
    """Option whose errors name the environment variable that set it."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag, and the variable."""
        variable = source_variable(ctx, self.name or "") if ctx is not None else ""
        return f"{super().get_error_hint(ctx)}{f' ({variable})' if variable else ''}"


def _option(flag: Flag) -> click.Option:
    # click reads an eager option first, so that its values can be the defaults of the others.
    profile: Mapping[str, Any] = {"is_eager": True, "callback": _set_defaults} if flag.name == _PROFILE else {}
    return _FlagOption(
        [f"--{flag.name}"],
        default=_default(flag),
        help=flag.help,
        show_default=flag.shown_default or True,
        envvar=_variables(flag),
        **_kind(flag.type),
        **profile,
    )


def _set_defaults(ctx: click.Context, _option: click.Parameter, profile: str) -> str:
    """Make the values of a profile the defaults of the other flags."""
    values = {name: flag_text(value) for name, value in profile_values(profile).items()}
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return profile


def _variables(flag: Flag) -> list[str]:
    return [f"{ENVIRONMENT_PREFIX}_{flag.name.upper()}", *flag.setting.variables]


def _default(flag: Flag) -> Any:  # noqa: ANN401 - as wide as the settings
    """Return the default as a user would write it."""
    default = flag.default
    if isinstance(default, enum.StrEnum):
        return default.value
    return (",".join(map(str, default)) or None) if isinstance(default, tuple) else default


def _kind(annotation: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a type expression
    """Return click's arguments for a setting's type. Settings parses the text of other types."""
    types = {part for part in get_args(annotation) if part is not type(None)} or {annotation}
    if get_origin(annotation) is Literal:
        return {"type": click.Choice(get_args(annotation))}
    [one, *others] = types
    if not others and isinstance(one, type) and issubclass(one, enum.StrEnum):
        return {"type": click.Choice([member.value for member in one])}
    if types == {bool}:
        return _SWITCH
    if annotation == tuple[int, ...]:
        return {"type": _Sizes()}
    return {"type": next((known for known in (int, float) if types == {known}), str)}


# TensorFlow Serving's syntax of booleans: `--x`, `--x=true`, `--x=false`, `--x=1`, `--x=0`.
_SWITCH: Mapping[str, Any] = {"type": bool, "is_flag": False, "flag_value": True, "metavar": "BOOL"}


def _unneeded_option(flag: UnneededFlag) -> click.Option:
    def notice(ctx: click.Context, _option: click.Parameter, value: object) -> None:
        if value is None or value == flag.fixed_value:
            return
        if flag.refused:
            raise click.UsageError(f"--{flag.name} is not supported. {flag.instead}")
        # The format of the log is not known yet.
        ctx.meta.setdefault(_NOTICES, []).append(f"--{flag.name} has no effect. {flag.instead}")

    kind = _SWITCH if flag.type is bool else {"type": flag.type}
    return click.Option(
        [f"--{flag.name}"],
        default=None,
        expose_value=False,
        callback=notice,
        help=f"Refused. {flag.instead}" if flag.refused else flag.instead,
        **kind,
    )


def _check_option() -> click.Option:
    return click.Option(
        ["--check_config"],
        type=click.Choice(["text", "json"]),
        is_flag=False,
        flag_value="text",
        default=None,
        help="Check every flag, file, model and version, print the findings and exit.",
    )


def _version_option() -> click.Option:
    def show(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            click.echo(f"tpuserve serve, version {version('tpuserve-server')}")
            click.echo(
                f"TensorFlow ModelServer: {_version_of('tensorflow-serving-api', ' (its API, served by tpuserve)')}"
            )
            click.echo(f"TensorFlow Library: {_version_of('tensorflow')}")
            ctx.exit()

    return click.Option(
        ["--version"], default=False, show_default=False, expose_value=False, is_eager=True, callback=show,
        help="Show the versions of this server and of TensorFlow.", **_SWITCH,
    )  # fmt: skip


def _version_of(distribution: str, note: str = "") -> str:
    try:
        return f"{version(distribution)}{note}"
    except PackageNotFoundError:
        return "not installed"
