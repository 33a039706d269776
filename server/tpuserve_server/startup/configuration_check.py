"""`--check_config`: finds every problem of a configuration, without loading a model or opening a port."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from tpuserve_formats.messages.official import ConfigProto
from tpuserve_server.core.models.configuration_rules import (
    check_ensemble,
    check_list,
    check_nesting,
    check_platforms,
    describe_without_version,
)
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.storage import FileName, Storage, VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.executors.tensorflow import TENSORFLOW
from tpuserve_server.hosts.addresses import SocketFile, bound
from tpuserve_server.hosts.application import HostError, HostOptions
from tpuserve_server.hosts.certificates import certificate_status, check_usable, expiry_warnings, find_invalidity
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.startup.config_files import (
    ConfigError,
    check_credentials,
    check_jwks,
    read,
    read_batching_parameters,
    read_metrics_path,
    show_file,
)
from tpuserve_server.startup.file_checks import cache_directories, check_directory, exposures, is_open_to_others
from tpuserve_server.startup.listening import find_certificates
from tpuserve_server.startup.model_config_file import ModelConfigFile, model_config_file, read_models
from tpuserve_server.startup.options import (
    loading_options,
    model_storage,
    read_signing_keys,
    remote_storage,
    required_signatures,
    vertex_paths,
)
from tpuserve_server.startup.settings import Settings
from tpuserve_server.versions.signatures import RequiredSignatures

Severity: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `subject` is a flag, a model or a version; `message` is for an operator."""

    severity: Severity
    subject: str
    message: str


def run_check(subject: str, action: Callable[[], str]) -> Finding:
    """Run `action` and return its message, or its error for an operator, as a finding."""
    try:
        return Finding("ok", subject, action())
    except ServingError as error:
        return Finding("error", subject, error.message)
    except (ConfigError, HostError, OSError) as error:
        return Finding("error", subject, str(error))


def has_errors(findings: Sequence[Finding]) -> bool:
    """Return whether a server with this configuration would fail to start, or fail to serve a model."""
    return any(finding.severity == "error" for finding in findings)


def format_text(findings: Sequence[Finding]) -> str:
    """Format one line for each finding, and a last line with the counts."""
    lines = [f"{finding.severity:<8} {finding.subject}: {finding.message}" for finding in findings]
    errors, warnings = (sum(finding.severity == kind for finding in findings) for kind in ("error", "warning"))
    return "\n".join([*lines, f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"])


def format_json(findings: Sequence[Finding]) -> str:
    """Format one JSON object: `ok`, and `findings` with `severity`, `subject` and `message`."""
    return json.dumps({"ok": not has_errors(findings), "findings": [asdict(finding) for finding in findings]})


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# The checks of models read none of these files, and other flags need them.
_CREDENTIALS: Final = frozenset(("credentials_file", "jwt_jwks_file"))


def check_configuration(settings: Settings) -> list[Finding]:
    """Check every file and directory that a flag names, then every model and version.

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
    if not broken.isdisjoint(settings.listening.certificate_files):
        unset.update(settings.listening.certificate_files)
    usable = Settings.of({**settings.values(), **dict.fromkeys(unset)})
    if usable.listening.has_vertex_routes:
        findings.append(run_check("routes of Vertex AI", lambda: _vertex_routes(usable)))
    models = read_models(usable.models, model_config_file(usable.models))
    if not models:
        # An operator who allows it may mean to send the models with a reload.
        severity: Severity = "warning" if usable.models.allow_reload_without_models else "error"
        findings.append(Finding(severity, "models", "the configuration has no model, so the server is never ready"))
    return [*findings, *build_model_check(usable).findings(models)]


def _checks(settings: Settings) -> Mapping[str, Callable[[], str]]:
    """Return the checks by flag. Each returns a sentence on the valid setting, or raises an error."""
    values = settings.values()
    checks: dict[str, Callable[[], str]] = {
        "bind_address": lambda: _address(settings.listening.bind_address),
    }
    files: Mapping[str, Callable[[FileName], object]] = {
        "model_config_file": lambda path: ModelConfigFile(path, poll_wait_s=0).read(),
        "batching_parameters_file": lambda path: read_batching_parameters(path, settings.batching),
        "monitoring_config_file": read_metrics_path,
        "credentials_file": check_credentials,
        "jwt_jwks_file": check_jwks,
        "require_signed": read_signing_keys,
        "tensorflow_session_config_file": lambda path: read(path, ConfigProto()),
    }
    for name, reader in files.items():
        if (path := values[name]) is not None:
            checks[name] = partial(_file, path, reader)
    # The check of the first file reads the others, because key and certificate must belong together.
    if (read_certificates := find_certificates(settings.listening)) is not None:
        name, path = next(iter(settings.listening.certificate_files.items()))
        checks[name] = partial(_file, path, lambda _: check_usable(read_certificates()))
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


def _warnings(settings: Settings, broken: Set[str]) -> Iterator[Finding]:
    """Yield warnings about what the server accepts: exposed files and expiring certificates."""
    yield from (Finding("warning", f"--{name}", exposure) for name, exposure in exposures(settings).items())
    files = settings.listening.certificate_files
    read_certificates = find_certificates(settings.listening)
    if read_certificates is not None and broken.isdisjoint(files):
        tls = read_certificates()
        expiring = list(expiry_warnings(certificate_status(tls), time.time()))
        for line in expiring or filter(None, [find_invalidity(tls)]):
            yield Finding("warning", f"--{next(iter(files))}", line.rstrip("."))


def _address(address: str) -> str:
    with bound(HostOptions(bind_address=address, grpc_port=0, rest_port=None), None):
        return f"{address} is an address of this machine"


def _file(path: FileName, reader: Callable[[FileName], object]) -> str:
    reader(path)
    return f"'{show_file(path)}' is valid"


def _socket(path: str) -> str:
    file = SocketFile(path, takes_over=True)
    file.check()
    return f"a socket can be created at {file.address}"


def _vertex_routes(settings: Settings) -> str:
    vertex_paths(settings)
    return "no route has another meaning in the server"


# Maximum number of entries that a finding lists for a base path without versions.
_MOST_NAMED = 3

Check: TypeAlias = Callable[[Sequence[ModelConfig]], None]


class ModelCheck:
    """Checks models as a start does. Blocks on disks and stores, copies nothing and changes nothing."""

    def __init__(
        self,
        storage: Storage,
        checks: Sequence[Check],
        version_checks: Sequence[Callable[[Path], object]],
        signatures: RequiredSignatures | None = None,
    ) -> None:
        """Take the `checks` of a reload, and those of a version's directory. They raise ServingError or ConfigError.

        `signatures` checks each version's signature; None: none is required.
        """
        self._storage = storage
        self._checks = (check_list, check_platforms, *checks)
        self._version_checks = version_checks
        self._signatures = signatures

    def findings(self, configs: Sequence[ModelConfig]) -> Iterator[Finding]:
        """Check every model, and every version that its policy chooses."""
        names = [config.name for config in configs]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Finding(
                "error",
                f"model {name}",
                "the configuration lists this name more than once. Give each model a different name",
            )
        by_name = {config.name: config for config in configs}
        for config in configs:
            yield from self._model(config, by_name)
        if (nesting := run_check("ensembles", partial(_run, check_nesting, configs))).severity == "error":
            yield nesting

    def _model(self, config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> Iterator[Finding]:
        subject = f"model {config.name}"
        results = [run_check(subject, partial(_run, check, [config])) for check in self._checks]
        results.append(run_check(subject, partial(_run, partial(check_ensemble, by_name=by_name), config)))
        if failed := [finding for finding in results if finding.severity == "error"]:
            # The checks of a start name the model themselves.
            yield from (replace(found, message=_without_name(config, found.message)) for found in failed)
            return
        if config.ensemble is not None:
            yield Finding("ok", subject, _describe(config.ensemble))
            return
        policy = config.version_policy
        if policy.versions == []:
            never = "its version policy `specific` names no version, so the server is never ready"
            yield Finding("error", subject, f"{never}. Name versions, or remove model_version_policy")
            return
        versions: dict[int, VersionLocation] = {}
        yield run_check(subject, partial(self._find, config, versions))
        if is_open_to_others(Path(config.base_path.removeprefix("file://"))):
            message = f"any user of this machine can add a version to {config.base_path}, and a model is code"
            yield Finding("warning", subject, f"{message}. Run: chmod o-w '{config.base_path}'")
        chosen = policy.choose(versions)
        for number in chosen:
            yield run_check(
                f"{subject} version {number}", partial(self._version, versions[number], ServableId(config.name, number))
            )
        for label, number in sorted(config.version_labels.items()):
            if number in chosen:
                continue
            refers = f"label {label} refers to version {number}, which"
            if number in policy.choose({*versions, number}) and number not in versions:
                yield Finding("warning", subject, f"{refers} does not exist. Requests with it fail until it does")
            else:
                message = f"{refers} the version policy does not choose. The label never takes effect"
                yield Finding("error", subject, message)

    def _find(self, config: ModelConfig, found: dict[int, VersionLocation]) -> str:
        path = config.base_path
        versions = self._storage.find_versions(path)
        if not versions:
            # `storage.check` has refused a base path that is itself a version.
            reason = describe_without_version(path, exists=versions is not None, file="")
            raise FailedPrecondition(f"{reason}{_others(path)}. The server would wait for a version to appear")
        found.update(versions)
        if absent := config.version_policy.absent(versions):
            numbers = ", ".join(map(str, absent))
            raise FailedPrecondition(f"base path {path} lacks versions that the policy requests: {numbers}")
        chosen = ", ".join(map(str, config.version_policy.choose(versions)))
        return f"base path {path}; the server would serve version {chosen}"

    def _version(self, location: VersionLocation, servable_id: ServableId) -> str:
        if refusal := self._storage.refusal(location):
            raise FailedPrecondition(refusal)
        if missing := self._storage.missing(location):
            raise FailedPrecondition(f"{location} is not complete: {missing}")
        folder = Path(location.uri.removeprefix("file://"))
        if folder.is_dir():
            _check_readable(folder)
            if self._signatures is not None:
                self._signatures.check(folder, servable_id)
            for check in self._version_checks:
                check(folder)
        if missing is None:
            return "the version has a model file, but no manifest that lists its files"
        return "every file in its manifest exists at full size"


_Checked = TypeVar("_Checked")


def _run(check: Callable[[_Checked], None], checked: _Checked) -> str:
    check(checked)
    return ""


def _without_name(config: ModelConfig, message: str) -> str:
    return message.removeprefix(f"Model {config.name}: ").removeprefix(f"Ensemble {config.name}: ")


def _describe(ensemble: Ensemble) -> str:
    models = ", ".join(step.model.name for step in ensemble.steps)
    tensors = f"from {', '.join(ensemble.inputs)} to {', '.join(ensemble.outputs)}"
    return f"ensemble of {models}, {tensors}. This check does not compare the steps' signatures"


def _others(base_path: str) -> str:
    """Name the entries of the base path, so that the operator recognises a wrong one."""
    if not os.path.isdir(base_path):
        return ""
    names = sorted(os.listdir(base_path))
    more = ", …" if len(names) > _MOST_NAMED else ""
    return f"; it contains {', '.join(names[:_MOST_NAMED])}{more}" if names else "; it is empty"


def _check_readable(folder: Path) -> None:
    for file in sorted([folder, *folder.rglob("*")]):
        needed = os.R_OK | os.X_OK if file.is_dir() else os.R_OK
        if file.exists() and not os.access(file, needed):
            raise InvalidArgument(f"this user cannot read {file}. Change its mode or its owner")


def check_runtime(settings: Settings, version: Path) -> None:
    """Check that an installed package runs the version, on a device that may be missing. Blocks.

    Raises:
        MissingRuntime: only TensorFlow runs the version, and it is not installed.
        FailedPrecondition: the version needs its device programs, and they cannot be used.
    """
    reason: ServingError = TENSORFLOW.missing("the version's SavedModel needs")
    for plugin in executor_plugins():
        try:
            if plugin.would_run(settings.executors, version):
                return
        except ServingError as error:
            reason = error
    raise reason


def check_operations(settings: Settings, version: Path) -> None:
    """Check the version by each executor. Raises ServingError for a version that the executor would refuse."""
    for plugin in executor_plugins():
        if plugin.check_version is not None:
            plugin.check_version(settings.executors, version)


def build_model_check(settings: Settings) -> ModelCheck:
    """Build the check of the configured models for `--check_config`, with the checks of a start."""
    loading = loading_options(settings)
    storage = model_storage(settings, remote_storage(settings))
    logs = RequestLogs(settings.request_log, LogWriter(settings.rotation, SystemClock(), PrometheusMetrics()))
    own_batching = () if loading.read_parameters is None else (loading.read_parameters,)
    version_checks = (*own_batching, partial(check_runtime, settings), partial(check_operations, settings))
    return ModelCheck(
        storage, (storage.check, logs.check, loading.check), version_checks, required_signatures(settings)
    )
