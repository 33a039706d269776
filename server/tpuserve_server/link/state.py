"""EngineState: the models of the engine as a front-end process knows them, and its form as a message."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_server.core.loader import Loaded, LoadedVersion
from tpuserve_server.core.model_record import ModelRecord, VersionRecord
from tpuserve_server.core.types import Precision, ServableId, Signature, State
from tpuserve_server.link.tasks import QueueFacts


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Everything that a front-end needs to know about a version that serves."""

    signatures: Mapping[str, Signature]
    queue: QueueFacts
    labels: tuple[str, ...]
    precision: Precision | None
    device: str


@dataclass(frozen=True, slots=True)
class EngineState:
    """The registry of the engine at one moment. Records contain no loaded versions.

    `configured` are the names of the configured models. `keys` are those of the versions that front-ends may use, by
    model and number. `new` holds the facts about those that this front-end does not know yet. `engine_only` are the
    models whose predictions only the engine can answer.
    """

    number: int
    models: Mapping[str, ModelRecord]
    configured: tuple[str, ...]
    is_closed: bool
    keys: Mapping[tuple[str, int], int]
    new: Mapping[int, VersionFacts]
    engine_only: frozenset[str]
    is_oip_in_engine: bool


def facts_of(loaded: LoadedVersion) -> VersionFacts:
    """Return the facts about a version."""
    signatures, batcher = loaded.servable.signatures, loaded.batcher
    options = {name: batcher.options(name) for name in signatures}
    queue = QueueFacts(
        {name: one for name, one in options.items() if one is not None},
        frozenset(name for name in signatures if batcher.has_objective(name)),
        batcher.default_rows,
    )
    return VersionFacts(dict(signatures), queue, loaded.labels, loaded.precision, loaded.servable.device)


def serving_of(models: Mapping[str, ModelRecord]) -> list[tuple[ServableId, Loaded]]:
    """Return each version that answers requests. The registry's lock guards the records."""
    versions = [version for model in models.values() for version in model.versions.values()]
    return [
        (version.aspired.servable, version.loaded)
        for version in versions
        if version.loaded is not None and version.state is State.AVAILABLE
    ]


def is_special(loaded: Loaded) -> bool:
    """Return whether only the engine can answer the requests of a version: an ensemble, or one with a cache."""
    return not isinstance(loaded, LoadedVersion) or loaded.responses is not None


def copy_records(models: Mapping[str, ModelRecord]) -> dict[str, ModelRecord]:
    """Return copies of the records without loaded versions and handles. The registry's lock guards the records."""
    return {name: _copy(model) for name, model in models.items()}


def _copy(model: ModelRecord) -> ModelRecord:
    versions = {
        number: VersionRecord(one.aspired, one.is_aspired, one.state, one.error, None, 0, one.waits, one.remark)
        for number, one in model.versions.items()
    }
    labels, pending = dict(model.labels), dict(model.pending)
    return dataclasses.replace(model, versions=versions, latest=None, labels=labels, pending=pending)
