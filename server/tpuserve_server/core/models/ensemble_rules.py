"""Rules for the ensembles in a list of model configurations. They look at names; signatures are checked at load."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, ModelConfig, VersionPolicy
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep, name_some, order_steps
from tpuserve_server.core.terms.errors import InvalidArgument

# Maximum number of steps that a request to an ensemble runs, and of ensembles within each other.
_MAX_STEPS = 256
_MAX_LEVELS = 16


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
