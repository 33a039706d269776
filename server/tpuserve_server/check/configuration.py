"""`--check_config`: finds every problem of a configuration, without loading a model or opening a port."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from tpuserve_formats.messages.official import ConfigProto
from tpuserve_server.check.finding import Finding, run_check
from tpuserve_server.command.listening import read_tls
from tpuserve_server.command.settings import Settings
from tpuserve_server.command.vertex import vertex_paths
from tpuserve_server.config.batching_parameters import read_batching_parameters
from tpuserve_server.config.model_config_file import ModelConfigFile
from tpuserve_server.config.monitoring_config import read_metrics_path
from tpuserve_server.config.text_format import read
from tpuserve_server.hosts.addresses import listen
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.selection import select_host
from tpuserve_server.hosts.socket_file import SocketFile
from tpuserve_server.hosts.tls import server_context


def check_configuration(settings: Settings, check_models: Callable[[Settings], Iterable[Finding]]) -> list[Finding]:
    """Check every file and directory that a flag names, then every model and version with `check_models`.

    Blocks on disks and stores.
    """
    findings = [run_check(f"--{name}", check) for name, check in _checks(settings).items()]
    broken = {finding.subject.removeprefix("--") for finding in findings if finding.severity == "error"}
    if "model_config_file" in broken:
        return findings
    # Without the broken files, the check can still look at the models and at the routes that depend on them.
    usable = Settings.of({**settings.values(), **{name: None for name in broken if name.endswith("_file")}})
    if usable.listening.has_vertex_routes:
        findings.append(run_check("routes of Vertex AI", lambda: _vertex_routes(usable)))
    return [*findings, *check_models(usable)]


def _checks(settings: Settings) -> Mapping[str, Callable[[], str]]:
    """Return the checks by flag. Each returns a sentence on the valid setting, or raises an error."""
    values = settings.values()
    checks: dict[str, Callable[[], str]] = {
        "host_backend": lambda: _host(settings),
        "bind_address": lambda: _address(settings.listening.bind_address),
    }
    files: Mapping[str, Callable[[Path], object]] = {
        "model_config_file": lambda path: ModelConfigFile(path, poll_wait_s=0).read(),
        "batching_parameters_file": lambda path: read_batching_parameters(path, settings.batching),
        "monitoring_config_file": read_metrics_path,
        "ssl_config_file": lambda path: server_context(read_tls(path)),
        "tensorflow_session_config_file": lambda path: read(path, ConfigProto()),
    }
    for name, reader in files.items():
        if (path := values[name]) is not None:
            checks[name] = partial(_file, path, reader)
    if settings.listening.grpc_socket_path is not None:
        checks["grpc_socket_path"] = lambda: _socket(str(settings.listening.grpc_socket_path))
    if settings.request_log.path_prefix is not None:
        checks["request_log_path_prefix"] = lambda: _folder_for(Path(f"{settings.request_log.path_prefix}-"))
    for name in ("storage_cache_dir", "compilation_cache_dir"):
        if (folder := values[name]) is not None:
            checks[name] = partial(_folder_for, folder / "file")
    if settings.pjrt.device in ("tpu", "gpu"):
        checks["device"] = lambda: _jax(settings.pjrt.device)
    if settings.tflite.preferred:
        checks["prefer_tflite_model"] = _litert
    return checks


def _host(settings: Settings) -> str:
    selection = select_host(settings.listening.host_backend)
    return f"{selection.backend}: {selection.reason}"


def _address(address: str) -> str:
    listen(address, 0, "gRPC and REST").close()
    return f"{address} is an address of this machine"


def _file(path: Path, reader: Callable[[Path], object]) -> str:
    reader(path)
    return f"'{path}' is valid"


def _socket(path: str) -> str:
    file = SocketFile(path, takes_over=True)
    file.check()
    return f"a socket can be created at {file.address}"


def _folder_for(path: Path) -> str:
    """Check that the server can create `path`, in a directory that exists or that it can create."""
    folder = path.absolute().parent
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise HostError(f"'{existing}' is not a directory. Choose another path.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise HostError(f"This user cannot write to '{existing}'. Change its mode, or choose another path.")
    return f"the server can write to '{folder}'"


def _vertex_routes(settings: Settings) -> str:
    vertex_paths(settings)
    return "no route has another meaning in the server"


def _jax(device: str) -> str:
    if importlib.util.find_spec("jax") is None:
        extra = {"tpu": "tpu", "gpu": "cuda"}[device]
        raise HostError(f"Device programs need JAX: pip install 'tpuserve-server[{extra}]'.")
    return "JAX is installed. This check does not look for the device"


def _litert() -> str:
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise HostError("TensorFlow Lite models need LiteRT: pip install 'tpuserve-server[tflite]'.")
    return "LiteRT is installed"
