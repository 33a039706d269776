"""Resolution of a request's label or version, and the errors for requests that no version can answer.

The registry calls these functions under its lock.
"""

from tpuserve_server.core.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.model_record import ModelRecord


def resolve_label(model: ModelRecord | None, name: str, label: str) -> int:
    """Return the version of a label. `model` is None if no model has this name.

    Raises:
        InvalidArgument: the label is unknown.
        Unavailable: the version of the label is not loaded yet.
    """
    number = model.labels.get(label) if model is not None else None
    if number is not None:
        return number
    if model is not None and model.is_label_coming(label):
        raise Unavailable(f"Label {label} of model {name} has no version ready yet: {model.describe()}")
    raise InvalidArgument(f"Unrecognized servable version label: {label}")


def why_not(model: ModelRecord | None, name: str, number: int | None) -> ServingError:
    """Return why a version does not answer requests, or why none does if `number` is None."""
    if number is not None:
        if model is not None and model.is_starting(number):
            return Unavailable(f"Model {name} version {number} is not ready yet: {model.describe()}")
        return NotFound(f"Servable not found for request: Specific({name}, {number})")
    if model is not None and model.is_arriving():
        return Unavailable(f"Model {name} has no version ready yet: {model.describe()}")
    return NotFound(f"Servable not found for request: Latest({name})")


def shutting_down() -> Unavailable:
    """Return the error of every request once the registry is closed."""
    return Unavailable("The server is shutting down")
