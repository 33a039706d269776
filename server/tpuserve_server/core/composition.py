"""The models that ensembles consist of, directly and through other ensembles. Pure."""

from collections.abc import Collection, Mapping

from tpuserve_server.core.model_config import ModelConfig


def find_composing(name: str, configs: Mapping[str, ModelConfig]) -> tuple[str, ...]:
    """Return the models that an ensemble needs. Empty for any other model, and for an unknown one."""
    found: dict[str, None] = {}
    rest = [name]
    while rest:
        new = [each for each in _step_models(rest.pop(), configs) if each not in found]
        found.update(dict.fromkeys(new))
        rest.extend(new)
    return tuple(found)


def find_released(name: str, configs: Mapping[str, ModelConfig], loaded_along: Collection[str]) -> set[str]:
    """Return a model to remove and those of `loaded_along` that no remaining ensemble in `configs` needs without it."""
    removed = {name}
    rest = [name]
    while rest:
        for model in _step_models(rest.pop(), configs) & set(loaded_along) - removed:
            if not any(model in _step_models(other, configs) for other in configs.keys() - removed):
                removed.add(model)
                rest.append(model)
    return removed


def _step_models(name: str, configs: Mapping[str, ModelConfig]) -> frozenset[str]:
    config = configs.get(name)
    return config.ensemble.models if config is not None and config.ensemble is not None else frozenset()
