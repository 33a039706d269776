"""Construction of the check of the configured models."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from tpuserve_server.core.models.base_path import describe_without_version
from tpuserve_server.core.models.ensemble_rules import check_ensemble, check_nesting
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.model_config_rules import check_list, check_platforms
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.storage import Storage, VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.executors.tensorflow import TENSORFLOW
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.startup.finding import Finding, run_check
from tpuserve_server.startup.options import loading_options, required_signatures
from tpuserve_server.startup.secret_file import is_open_to_others
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.storage import model_storage, remote_storage
from tpuserve_server.versions.signatures import RequiredSignatures

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
        versions: dict[int, VersionLocation] = {}
        yield run_check(subject, partial(self._find, config, versions))
        if is_open_to_others(Path(config.base_path.removeprefix("file://"))):
            message = f"any user of this machine can add a version to {config.base_path}, and a model is code"
            yield Finding("warning", subject, f"{message}. Run: chmod o-w '{config.base_path}'")
        chosen = config.version_policy.choose(versions)
        for number in chosen:
            yield run_check(
                f"{subject} version {number}", partial(self._version, versions[number], ServableId(config.name, number))
            )
        for label, number in sorted(config.version_labels.items()):
            if number not in chosen:
                message = f"label {label} refers to version {number}, which the version policy does not choose"
                yield Finding("warning", subject, message)

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
