"""Readiness of the server, from the records of its configured models. The registry's lock guards them."""

from collections.abc import Iterable, Mapping

from tpuserve_server.core.models.model_record import ModelRecord


def why_not_ready(models: Mapping[str, ModelRecord]) -> str:
    """Return why a server with these models is not ready, as `ModelRegistry.why_not_ready` describes, or ""."""
    if not models:
        return "no model is configured"
    missing = [name for name, model in models.items() if model.latest is None]
    awaited = [name for name in missing if models[name].is_awaited and not models[name].has_failed()]
    if awaited or len(missing) == len(models):
        return _describe_missing(models, awaited or missing)
    if hung := [f"{name} ({why})" for name, model in models.items() if (why := model.why_hung())]:
        return f"no response from: {', '.join(hung)}"
    starting = {name: model.settle_start() for name, model in models.items() if model.is_awaited}
    waits = [f"{name} ({what})" for name, what in starting.items() if what]
    return f"the start has not ended for: {', '.join(waits)}" if waits else ""


def is_starting(models: Mapping[str, ModelRecord]) -> bool:
    """Return whether the start of a model has not ended that the server is not ready without."""
    return any(model.is_awaited and not model.has_failed() and model.settle_start() != "" for model in models.values())


def _describe_missing(models: Mapping[str, ModelRecord], names: Iterable[str]) -> str:
    reasons = {name: models[name].arriving.describe() for name in names}
    described = [f"{name} ({reason})" if reason else name for name, reason in reasons.items()]
    return f"no version available for: {', '.join(described)}"
