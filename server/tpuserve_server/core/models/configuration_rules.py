"""ConfigurationRules: which model configurations the server accepts, from the operator and from clients.

They look at names and paths. The load of a version checks its signatures.
"""

import logging
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, TENSORFLOW_PLATFORM, ModelConfig, VersionPolicy
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep, name_some, order_steps
from tpuserve_server.core.terms.errors import InvalidArgument, PermissionDenied
from tpuserve_server.core.terms.name_rules import check_name, check_path
from tpuserve_server.core.terms.options import ReloadOptions
from tpuserve_server.core.terms.storage import FILE_SCHEME, is_uri, parse_version, without_secrets

logger = logging.getLogger(__name__)

# Maximum number of steps that a request to an ensemble runs, and of ensembles within each other.
_MAX_STEPS = 256
_MAX_LEVELS = 16


@dataclass(frozen=True, slots=True)
class ConfigurationRules:
    """The configurations that the operator of a server allows.

    `roots` limit the paths of clients. `labels_for_unavailable`: a new label may refer to any version, like upstream's
    --allow_version_labels_for_unavailable_models. `no_models`: a configuration may remove all models. `checks` raise
    ServingError for configurations that other parts cannot apply.
    """

    roots: "ReloadRoots"
    labels_for_unavailable: bool = False
    no_models: bool = False
    checks: Sequence[Callable[[Sequence[ModelConfig]], None]] = ()

    def check(self, configs: Sequence[ModelConfig], before: Mapping[str, ModelConfig]) -> None:
        """Check a configuration that replaces the models `before`. Raises InvalidArgument."""
        check_list(configs)
        check_ensembles(configs)
        check_same_platforms(configs, before)
        check_platforms(configs)

    def check_otherwise(self, configs: Sequence[ModelConfig]) -> None:
        """Make the `checks`. They may read files. Raises ServingError."""
        for check in self.checks:
            check(configs)


def check_ensembles(configs: Sequence[ModelConfig]) -> None:
    """Check every ensemble, and that no ensemble contains itself.

    Raises:
        InvalidArgument: naming the first ensemble that breaks a rule, and its step or tensor.
    """
    by_name = {config.name: config for config in configs}
    for config in configs:
        check_ensemble(config, by_name)
    check_nesting(configs)


def check_nesting(configs: Sequence[ModelConfig]) -> None:
    """Check that no ensemble contains itself, or too many others.

    Raises:
        InvalidArgument: with the names of the ensembles.
    """
    ensembles = {config.name: config.ensemble for config in configs if config.ensemble is not None}
    try:
        order = tuple(TopologicalSorter({name: each.models for name, each in ensembles.items()}).static_order())
    except CycleError as error:
        # The error has each name after one that it contains.
        raise InvalidArgument(f"Ensembles contain each other: {name_some(error.args[1][::-1], ' -> ')}") from None
    _check_sizes({name: ensembles[name] for name in order if name in ensembles})


def _check_sizes(ensembles: Mapping[str, Ensemble]) -> None:
    """Check the steps and levels of ensembles, each of which follows those within it.

    Few ensembles that each run the next twice would otherwise be more steps than a request can hold.
    """
    steps: dict[str, int] = {}
    levels: dict[str, int] = {}
    for name, ensemble in ensembles.items():
        steps[name] = sum(steps.get(step.model.name, 1) for step in ensemble.steps)
        levels[name] = 1 + max((levels.get(model, 0) for model in ensemble.models), default=0)
        if steps[name] > _MAX_STEPS:
            raise InvalidArgument(
                f"Ensemble {name}: it has {steps[name]} steps, with those of the ensembles within it. The limit is "
                f"{_MAX_STEPS}"
            )
        if levels[name] > _MAX_LEVELS:
            raise InvalidArgument(
                f"Ensemble {name}: it has {levels[name]} levels of ensembles within each other. The limit is "
                f"{_MAX_LEVELS}"
            )


def check_ensemble(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> None:
    """Check one model, if it is an ensemble of models in `by_name`. Raises InvalidArgument."""
    ensemble = config.ensemble
    is_ensemble = config.platform == ENSEMBLE_PLATFORM
    if ensemble is None:
        if is_ensemble:
            raise InvalidArgument(f'Model {config.name} has platform "ensemble", but no ensemble_scheduling')
        return
    problems = _problems(config, ensemble, by_name) if is_ensemble else iter(['set model_platform: "ensemble"'])
    if (problem := next(problems, None)) is not None:
        raise InvalidArgument(f"Ensemble {config.name}: {problem}")


def _problems(config: ModelConfig, ensemble: Ensemble, by_name: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Yield what is wrong. Later checks rely on earlier ones."""
    if unused := _unusable_fields(config):
        yield f"an ensemble cannot have {unused}. Set it on the models of the steps"
    if not ensemble.steps:
        yield "ensemble_scheduling has no step"
    for step in ensemble.steps:
        yield from _step_problems(step, by_name)
    yield from _producer_problems(ensemble)
    try:
        order_steps(ensemble.steps)
    except InvalidArgument as error:
        yield error.message
    yield from _declaration_problems(ensemble)


def _unusable_fields(config: ModelConfig) -> str:
    found = {
        "base_path": bool(config.base_path),
        "model_version_policy": config.version_policy != VersionPolicy(),
        "version_labels": bool(config.version_labels),
        "batching_parameters": config.batching is not None,
        "response_cache": config.response_cache_max_bytes is not None,
    }
    return next((name for name, is_set in found.items() if is_set), "")


def _step_problems(step: EnsembleStep, by_name: Mapping[str, ModelConfig]) -> Iterator[str]:
    if not step.model.name:
        yield f"step {step.number} has no model_name"
    model = by_name.get(step.model.name)
    if model is None:
        yield f"{step}: the configuration has no model {step.model.name}"
        return
    if step.model.version is not None and step.model.version_label is not None:
        yield f"{step} has both model_version and version_label. Set only one of them"
    chosen = model.version_policy.versions
    if chosen is not None and step.model.version is not None and step.model.version not in chosen:
        yield f"{step}: the version policy of model {model.name} does not choose version {step.model.version}"
    label = step.model.version_label
    if label is not None and label not in model.version_labels:
        yield f"{step}: model {model.name} has no version label {label}"
    for field, connections in (("input_map", step.inputs), ("output_map", step.outputs)):
        if not connections:
            yield f"{step} has no {field}"
        if not all(key and value for key, value in connections):
            yield f"{step} has an {field} without key or value"
        if repeated := _repeated([key for key, _ in connections]):
            yield f"{step}: {field} has the key {repeated} more than once"


def _producer_problems(ensemble: Ensemble) -> Iterator[str]:
    producers: dict[str, EnsembleStep] = {}
    for step in ensemble.steps:
        for tensor in step.produces:
            other = producers.setdefault(tensor, step)
            if other is not step:
                yield f"{other} and {step} both produce tensor {tensor}"
        if repeated := _repeated(step.produces):
            yield f"{step}: two outputs produce tensor {repeated}"


def _declaration_problems(ensemble: Ensemble) -> Iterator[str]:
    produced, taken, outputs = set(ensemble.produced), set(ensemble.taken), set(ensemble.outputs)
    for field, names in (("input", ensemble.declared_inputs), ("output", ensemble.declared_outputs)):
        if repeated := _repeated(names):
            yield f"{field} {repeated} is declared more than once"
    for name in ensemble.declared_inputs:
        if name in produced:
            yield f"input {name} is also produced by a step"
        if name not in taken:
            yield f"no step takes input {name}"
    for name in ensemble.declared_outputs:
        if name not in produced:
            yield f"no step produces output {name}. The steps produce {name_some(ensemble.produced)}"
    known = produced.union(ensemble.inputs)
    for step in ensemble.steps:
        for tensor in step.takes:
            if tensor not in known:
                yield f"{step} takes tensor {tensor}, which no step produces and which is no declared input"
        for tensor in step.produces:
            if tensor not in taken and tensor not in outputs:
                yield f"tensor {tensor} of {step} is not connected: no step takes it, and it is no declared output"


def _repeated(names: Sequence[str]) -> str:
    """Return a name that occurs more than once, or ""."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


# A URI with a scheme and a host, such as gs://bucket/model (tsl/platform/path.cc, ParseURI).
_URI = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
_PASSWORD = re.compile(r"[^/]+://[^/@]*:\S*@")


def check_list(configs: Sequence[ModelConfig]) -> None:
    """Check that names are unique and base paths absolute, and every text. Ensembles need no base path.

    Raises:
        InvalidArgument: naming the first that is not.
    """
    names: set[str] = set()
    for config in configs:
        _check_texts(config)
        if config.name in names:
            raise InvalidArgument(f"Illegal to list model {config.name} multiple times in config list")
        names.add(config.name)
    for config in configs:
        if config.ensemble is None and config.platform != ENSEMBLE_PLATFORM and not _is_absolute(config.base_path):
            raise InvalidArgument(
                f"Expected model {config.name} to have an absolute path or URI; got base_path()="
                f"{without_secrets(config.base_path)}"
            )


def _check_texts(config: ModelConfig) -> None:
    name = config.name
    check_name("Model name", name)
    check_path(f"Model {name}: base_path", config.base_path)
    # Messages and the status show base paths. No store reads credentials from them.
    if _PASSWORD.match(config.base_path):
        shown = without_secrets(config.base_path)
        raise InvalidArgument(f"Model {name}: base_path must have no password; got {shown}")
    check_name(f"Model {name}: model_platform", config.platform)
    for label in config.version_labels:
        check_name(f"Model {name}: version label", label)
    if config.logging is not None:
        check_name(f"Model {name}: type of log_collector_config", config.logging.type)
        check_path(f"Model {name}: filename_prefix", config.logging.filename_prefix)
    if config.ensemble is not None:
        for text in config.ensemble.names:
            check_name(f"Ensemble {name}: name", text)


def check_same_platforms(configs: Sequence[ModelConfig], before: Mapping[str, ModelConfig]) -> None:
    """Check that no model changes its platform while it stays configured. Raises InvalidArgument."""
    for config in configs:
        old = before.get(config.name)
        if old is not None and config.platform != old.platform:
            raise InvalidArgument(
                f"Illegal to change a model's platform. For model {config.name} platform was {old.platform} and new "
                f"platform requested is {config.platform}"
            )


def check_platforms(configs: Sequence[ModelConfig]) -> None:
    """Check that every platform is supported. Raises InvalidArgument."""
    for config in configs:
        if config.platform not in (TENSORFLOW_PLATFORM, ENSEMBLE_PLATFORM):
            raise InvalidArgument(f"Model {config.name} requests unsupported platform {config.platform}")


def _is_absolute(base_path: str) -> bool:
    return base_path.startswith("/") or _URI.match(base_path) is not None


# Segments of a URI that some stores resolve and others do not.
_UNCLEAR: Final = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory with links resolved, or a URI: its scheme, which is "" for a directory, and its segments."""

    scheme: str
    segments: tuple[str, ...]

    def contains(self, other: "_Place") -> bool:
        return self.scheme == other.scheme and other.segments[: len(self.segments)] == self.segments

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(self.segments)}" if self.scheme else str(Path(*self.segments))


class ReloadRoots:
    """Paths that the operator allows: the flags' paths, and the directories of paths in the operator's configurations.

    A path that the operator wrote stays allowed as written, wherever its links lead. ConfiguredModels calls all
    methods under its lock. They resolve links, so they may block on a disk.
    """

    def __init__(self, options: ReloadOptions, *, base_root: str | None = None, log_prefix: str | None = None) -> None:
        """`base_root` is a directory of models, and `log_prefix` the server's own request log."""
        self._model_roots = {_place(root) for root in options.model_roots}
        self._log_roots = {_place(root) for root in options.log_roots}
        self._adds_model_roots = not options.model_roots
        self._adds_log_roots = not options.log_roots
        self._base_paths: set[str] = set()
        self._prefixes: set[str] = set()
        if base_root and self._adds_model_roots:
            self._model_roots |= _proper(_place(base_root))
        self._add_prefixes([log_prefix] if log_prefix else [])

    def trust(self, configs: Sequence[ModelConfig]) -> None:
        """Allow the paths of a configuration that the operator wrote, and those beside them."""
        base_paths = {config.base_path for config in configs if config.ensemble is None} - self._base_paths
        self._base_paths |= base_paths
        if self._adds_model_roots:
            for base_path in base_paths:
                self._model_roots |= _parent(base_path)
        self._add_prefixes(config.logging.filename_prefix for config in configs if config.logging is not None)

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Check the paths of a client's configuration.

        Raises:
            InvalidArgument: a log's prefix is relative.
            PermissionDenied: a path is outside the roots. The message has no path that the client did not send.
        """
        for config in configs:
            if config.ensemble is None:
                self._check_base_path(config)
            if config.logging is not None and config.logging.filename_prefix:
                self._check_prefix(config.name, config.logging.filename_prefix)

    def _check_base_path(self, config: ModelConfig) -> None:
        path = config.base_path
        if path in self._base_paths or _is_within(path, self._model_roots):
            return
        _log_refusal("base path", path, self._model_roots)
        raise PermissionDenied(
            f"Model {config.name}: a reload may not use base path {path}. It may use base paths of the server's own "
            "configuration, directories beside them, and those in --reload_roots, after resolving links. The server's "
            "log lists them"
        )

    def _check_prefix(self, model: str, prefix: str) -> None:
        if prefix in self._prefixes:
            return
        if not prefix.startswith("/"):
            raise InvalidArgument(f"Model {model}: filename_prefix must be an absolute path in a reload; was {prefix}")
        if _is_within(os.path.dirname(prefix), self._log_roots):
            return
        _log_refusal("filename_prefix", prefix, self._log_roots)
        raise PermissionDenied(
            f"Model {model}: a reload may not log requests to {prefix}. It may log to the directories of request logs "
            "in the server's own configuration, and to those in --reload_log_roots, after resolving links. The "
            "server's log lists them"
        )

    def _add_prefixes(self, prefixes: Iterable[str]) -> None:
        new = set(prefixes) - self._prefixes
        self._prefixes |= new
        if self._adds_log_roots:
            for prefix in new:
                self._log_roots |= _proper(_place(os.path.dirname(os.path.abspath(prefix))))


def _place(path: str) -> _Place:
    """Return the place of a path. Resolves links of a directory, which does not need to exist."""
    if is_uri(path):
        scheme, _, rest = path.partition("://")
        return _Place(scheme, tuple(rest.rstrip("/").split("/")) if rest.strip("/") else ())
    return _Place("", Path(os.path.realpath(path.removeprefix(FILE_SCHEME))).parts)


def _is_within(path: str, roots: Iterable[_Place]) -> bool:
    if not is_uri(path) and not path.removeprefix(FILE_SCHEME).startswith("/"):
        # file:// with a relative path, which depends on the server's working directory.
        return False
    place = _place(path)
    if place.scheme and (not place.segments or not _UNCLEAR.isdisjoint(map(unquote, place.segments))):
        return False
    return any(root.contains(place) for root in roots)


def _parent(path: str) -> set[_Place]:
    """Return the directory of a base path. The directory of a path such as /model would be the whole machine."""
    if is_uri(path):
        place = _place(path)
        return {_Place(place.scheme, place.segments[:-1] or place.segments)} if place.segments else set()
    return _proper(_place(str(Path(path.removeprefix(FILE_SCHEME)).parent)))


def _proper(place: _Place) -> set[_Place]:
    return set() if place.segments in ((), ("/",)) else {place}


def _log_refusal(what: str, path: str, roots: Iterable[_Place]) -> None:
    allowed = ", ".join(sorted(map(str, roots))) or "none"
    logger.warning("Refused a reload with %s %r. Allowed directories: %s", what, path, allowed)


def describe_without_version(base_path: str, *, exists: bool, file: str) -> str:
    """Describe a base path without a version directory. `file` is the result of `Storage.find_version_file`."""
    if not exists:
        return f"base path {base_path} does not exist or is not a directory"
    if file:
        return describe_version_as_base(base_path, file)
    return f"base path {base_path} contains no version directory such as 1/"


def describe_version_as_base(base_path: str, file: str) -> str:
    """Describe a base path that is itself a version because it holds `file`, and name the directory to use instead."""
    folder = base_path.rstrip("/")
    parent, name = posixpath.split(folder)
    if parse_version(name) is None:
        return (
            f"base path {base_path} contains {file} itself, and no version directory. Move its files into a directory "
            f"whose name is a whole number, such as {folder}/1"
        )
    return (
        f"base path {base_path} is itself version {name}: it contains {file}. Use its parent directory: "
        f'--model_base_path={parent}, or base_path: "{parent}" in a model configuration'
    )
