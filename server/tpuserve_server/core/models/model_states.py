"""ModelStates: the versions of one model with their states, and its labels. Cheaper than the full status."""

from collections.abc import Mapping
from typing import NamedTuple

from tpuserve_server.core.models.loader import Loaded
from tpuserve_server.core.models.model_record import ModelRecord
from tpuserve_server.core.terms.types import ServableId, State


class ModelStates(NamedTuple):
    """States by version number, and the version of each label."""

    versions: Mapping[int, State]
    labels: Mapping[str, int]


def states_of(models: Mapping[str, ModelRecord]) -> dict[str, ModelStates]:
    """Return the states and the labels of each model. The registry's lock guards the records."""
    return {
        name: ModelStates({number: one.state for number, one in model.versions.items()}, dict(model.labels))
        for name, model in models.items()
    }


def loaded_of(models: Mapping[str, ModelRecord]) -> list[tuple[ServableId, Loaded]]:
    """Return each version that is loaded. The registry's lock guards the records."""
    versions = [version for model in models.values() for version in model.versions.values()]
    return [(version.aspired.servable, version.loaded) for version in versions if version.loaded is not None]
