"""`--check_config`: finds every problem of a configuration, without loading a model or opening a port."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tpuserve_formats.messages.official import ConfigProto
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.hosts.addresses import bound
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.certificates import certificate_status, expiry_warnings, find_invalidity
from tpuserve_server.hosts.socket_file import SocketFile
from tpuserve_server.hosts.tls import check_usable
from tpuserve_server.startup.batching_parameters import read_batching_parameters
from tpuserve_server.startup.cache_directories import cache_directories, check_directory
from tpuserve_server.startup.credentials import check_credentials, check_jwks
from tpuserve_server.startup.finding import Finding, run_check
from tpuserve_server.startup.listening import read_tls
from tpuserve_server.startup.model_config_file import ModelConfigFile
from tpuserve_server.startup.monitoring_config import read_metrics_path
from tpuserve_server.startup.secret_files import exposures
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.text_format import read
from tpuserve_server.startup.vertex import vertex_paths
from tpuserve_server.versions.signatures import RequiredSignatures

# The checks of models read none of these files, and other flags need them.
_CREDENTIALS: Final = frozenset(("credentials_file", "jwt_jwks_file"))


def check_configuration(settings: Settings, check_models: Callable[[Settings], Iterable[Finding]]) -> list[Finding]:
    """Check every file and directory that a flag names, then every model and version with `check_models`.

    Blocks on disks and stores.
    """
    findings = [run_check(f"--{name}", check) for name, check in _checks(settings).items()]
    findings += _findings_of_executors(settings)
    broken = {finding.subject.removeprefix("--") for finding in findings if finding.severity == "error"}
    findings += _warnings(settings, broken)
    if "model_config_file" in broken:
        return findings
    # Without the broken files, the check can still look at the models and at the routes that depend on them.
    unset = {name for name in broken - _CREDENTIALS if name.endswith("_file") or name == "require_signed"}
    usable = Settings.of({**settings.values(), **dict.fromkeys(unset)})
    if usable.listening.has_vertex_routes:
        findings.append(run_check("routes of Vertex AI", lambda: _vertex_routes(usable)))
    return [*findings, *check_models(usable)]


def _checks(settings: Settings) -> Mapping[str, Callable[[], str]]:
    """Return the checks by flag. Each returns a sentence on the valid setting, or raises an error."""
    values = settings.values()
    checks: dict[str, Callable[[], str]] = {
        "bind_address": lambda: _address(settings.listening.bind_address),
    }
    files: Mapping[str, Callable[[Path], object]] = {
        "model_config_file": lambda path: ModelConfigFile(path, poll_wait_s=0).read(),
        "batching_parameters_file": lambda path: read_batching_parameters(path, settings.batching),
        "monitoring_config_file": read_metrics_path,
        "ssl_config_file": lambda path: check_usable(read_tls(path)),
        "credentials_file": check_credentials,
        "jwt_jwks_file": check_jwks,
        "require_signed": RequiredSignatures.read,
        "tensorflow_session_config_file": lambda path: read(path, ConfigProto()),
    }
    for name, reader in files.items():
        if (path := values[name]) is not None:
            checks[name] = partial(_file, path, reader)
    if settings.listening.grpc_socket_path is not None:
        checks["grpc_socket_path"] = lambda: _socket(str(settings.listening.grpc_socket_path))
    if settings.request_log.path_prefix is not None:
        checks["request_log_path_prefix"] = lambda: check_directory(Path(f"{settings.request_log.path_prefix}-").parent)
    for name, directory in cache_directories(settings).items():
        checks[name] = partial(check_directory, directory)
    return checks


def _findings_of_executors(settings: Settings) -> Iterator[Finding]:
    for plugin in executor_plugins():
        if plugin.check_flags is not None:
            for found in plugin.check_flags(settings.executors):
                yield Finding(found.severity, f"--{found.flag}", found.message)


def _warnings(settings: Settings, broken: Collection[str]) -> Iterator[Finding]:
    """Yield warnings about what the server accepts: exposed files and expiring certificates."""
    yield from (Finding("warning", f"--{name}", exposure) for name, exposure in exposures(settings).items())
    ssl_config = settings.listening.ssl_config_file
    if ssl_config is not None and "ssl_config_file" not in broken:
        tls = read_tls(ssl_config)
        expiring = list(expiry_warnings(certificate_status(tls), time.time()))
        for line in expiring or filter(None, [find_invalidity(tls)]):
            yield Finding("warning", "--ssl_config_file", line.rstrip("."))


def _address(address: str) -> str:
    with bound(HostOptions(bind_address=address, grpc_port=0, rest_port=None), None):
        return f"{address} is an address of this machine"


def _file(path: Path, reader: Callable[[Path], object]) -> str:
    reader(path)
    return f"'{path}' is valid"


def _socket(path: str) -> str:
    file = SocketFile(path, takes_over=True)
    file.check()
    return f"a socket can be created at {file.address}"


def _vertex_routes(settings: Settings) -> str:
    vertex_paths(settings)
    return "no route has another meaning in the server"
