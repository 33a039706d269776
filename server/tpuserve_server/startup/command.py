"""`tpuserve serve`: reads settings from flags and environment, then runs the host that carries the server."""

# ruff: noqa: E402 - numpy starts a thread, which would get a heap of its own before the call.
from tpuserve_server.core.system.memory import keep_freed_memory

keep_freed_memory()

import logging
import os
import posixpath
import resource
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click
from pydantic import ValidationError

from tpuserve_server.core.terms.storage import FileName, is_uri
from tpuserve_server.hosts import supervisor
from tpuserve_server.hosts.application import HostError
from tpuserve_server.hosts.limits import unknown_arguments
from tpuserve_server.observe.logs.configuration import configure_logging
from tpuserve_server.observe.logs.log_format import COMMAND
from tpuserve_server.startup.config_files import (
    ConfigError,
    open_credentials,
    read_batching_parameters,
    read_metrics_path,
)
from tpuserve_server.startup.file_checks import warn_of_cache_directories, warn_of_exposed_files
from tpuserve_server.startup.flag_command import notices, serve_command, source_variable
from tpuserve_server.startup.listening import host_options
from tpuserve_server.startup.server_settings import BASE_ROOT_VARIABLE
from tpuserve_server.startup.settings import SETTINGS_VARIABLE, Settings
from tpuserve_server.startup.validation import describe_profile, read_settings, settings_json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from tpuserve_server.startup.configuration_check import Finding

logger = logging.getLogger(__name__)
command_log = logging.getLogger(COMMAND)

# TensorFlow Serving's defaults that scripts depend on. A REST port that a script does not request may belong to another
# server. Scripts send messages of up to 2 GiB, and take an open port as a sign that the models are loaded.
_UPSTREAM_DEFAULTS: Mapping[str, int | bool] = {
    "rest_api_port": 0,
    "max_request_bytes": 2**31 - 1,
    "ports_wait_for_models": True,
}

_EPILOG = """\b
Examples:
  tpuserve serve --model_name=digits --model_base_path=/models/digits
  tpuserve serve --port=9000 --rest_api_port=9001 --model_base_path=/models/digits --bind_address=127.0.0.1
  MODEL_NAME=digits MODEL_BASE_PATH=/models tpuserve serve      # as in TensorFlow Serving's image: /models/digits
  tpuserve serve --check_config --model_config_file=models.config      # check the configuration and exit

The command also reads each flag from the environment, such as TPUSERVE_SERVE_PORT for --port.

\b
Exit codes:
  0    the server drained after SIGTERM or Ctrl-C, or --check_config found no error
  1    the server could not start, or ended by itself
  2    the flags are invalid, or --check_config found an error
  3    the drain timeout cancelled requests, so some clients got no response
  128+ a second signal ended the server: 128 plus the signal's number
"""


def _serve(model_base_path: str | None, check_config: str | None, **flags: Any) -> None:  # noqa: ANN401 - validated by read_settings
    """Serve models over gRPC and REST, as TensorFlow Serving does, until SIGTERM or Ctrl-C."""
    try:
        configure_logging(flags["log_format"])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for notice in notices():
        command_log.warning(notice)
    path = _base_path(model_base_path, flags["model_name"], has_artifact=bool(flags["model_artifact_uri"]))
    values = {"model_base_path": path, **flags}
    if check_config is not None:
        _check(values, as_json=check_config == "json")
    settings = _validate(**values)
    try:
        _check_files(settings)
        warn_of_cache_directories(settings)
        warn_of_exposed_files(settings)
        status = _run(settings)
    except (HostError, ConfigError) as error:
        command_log.error("%s", error)
        sys.exit(1)
    sys.exit(status)


def _base_path(flag: str | None, model_name: str, *, has_artifact: bool) -> str | None:
    """Return the flag's path, or that of TensorFlow Serving's image. A relative path becomes absolute.

    The image always sets its variable, so `model_artifact_uri` replaces it.
    """
    parent = None if has_artifact else os.environ.get(BASE_ROOT_VARIABLE)
    path = flag or (posixpath.join(parent, model_name) if parent else None)
    return path if path is None or "://" in path else os.path.abspath(path)


def _validate(**values: Any) -> Settings:  # noqa: ANN401 - validated here
    try:
        return read_settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise click.UsageError(_explain(error.errors()[0])) from error


def _check(values: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Print the findings on the configuration, and exit with 0, or with 2 after an error."""
    # It imports most of the server.
    from tpuserve_server.startup.configuration_check import format_json, format_text, has_errors

    findings = _findings(values)
    click.echo(format_json(findings) if as_json else format_text(findings))
    sys.exit(2 if has_errors(findings) else 0)


def _findings(values: Mapping[str, Any]) -> "list[Finding]":
    """Return the errors of the flags, then the findings on the configuration from the valid flags."""
    from tpuserve_server.startup.configuration_check import Finding, check_configuration

    set_values = {name: value for name, value in values.items() if value is not None}
    try:
        return check_configuration(read_settings(**set_values))
    except ValidationError as error:
        errors = error.errors()
    findings = [Finding("error", "flags", line) for one in errors for line in _explain(one).splitlines()]
    invalid = {str(one["loc"][0]) for one in errors if one["loc"]}
    valid = {name: value for name, value in set_values.items() if name not in invalid}
    # An error about a combination of flags names no flag, so the check ends there.
    return [*findings, *_findings(valid)] if invalid else findings


def _explain(error: "ErrorDetails") -> str:
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return message
    received = "" if error["type"] == "value_error" else f", got {error['input']!r}"
    name = str(error["loc"][0])
    variable = source_variable(click.get_current_context(), name)
    return f"--{name}{f' ({variable})' if variable else ''}: {message}{received}"


def _check_files(settings: Settings) -> None:
    """Raise ConfigError for an unusable file. The server would report it seconds later and in another process.

    The serving process reads the objects of stores, whose libraries would stay in the memory of this process.
    """
    config_file, monitoring = settings.models.model_config_file, settings.server.monitoring_config_file
    parameters, identity = settings.batching_source.batching_parameters_file, settings.identity
    if config_file is not None and _are_local(config_file):
        # This imports the core's value types and numpy, 15 MB that the supervisor otherwise does not need.
        from tpuserve_server.startup.model_config_file import ModelConfigFile

        ModelConfigFile(config_file, poll_wait_s=0).read()
    if parameters is not None and _are_local(parameters):
        read_batching_parameters(parameters, settings.batching)
    if identity.are_set and _are_local(identity.credentials_file, identity.jwt_jwks_file):
        open_credentials(settings)
    if monitoring is not None and _are_local(monitoring):
        read_metrics_path(monitoring)
    if settings.listening.has_vertex_routes and _are_local(config_file, monitoring):
        # This imports the front-ends' value types and numpy.
        from tpuserve_server.startup.options import vertex_paths

        vertex_paths(settings)


def _are_local(*names: FileName | None) -> bool:
    return not any(is_uri(str(name)) for name in names)


def _run(settings: Settings) -> int:
    options = host_options(settings.listening, settings.host)
    for name in unknown_arguments(options.grpc_arguments):
        command_log.warning("--grpc_channel_arguments: %s has no effect", name)
    if described := describe_profile(settings.server.profile):
        logger.info("Profile %s: %s", settings.server.profile, described)
    if options.tls is not None:
        _disable_core_dumps()
    return supervisor.run("tpuserve_server.startup.serve", options, {SETTINGS_VARIABLE: settings_json(settings)})


def _disable_core_dumps() -> None:
    """Keep this process and its children from writing core dumps, which contain the key and the requests in memory.

    To get one nevertheless, run `prlimit --core=unlimited --pid PID` as the server's user.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


serve = serve_command(_serve, _EPILOG)


def main() -> None:
    """Run `tpuserve serve`. This is the entry point of `tpuserve-serve`."""
    serve(prog_name="tpuserve serve")


def tensorflow_model_server() -> None:
    """Run `tpuserve serve` as `tensorflow_model_server`, with the upstream defaults that scripts depend on."""
    serve(prog_name="tensorflow_model_server", default_map=dict(_UPSTREAM_DEFAULTS))
