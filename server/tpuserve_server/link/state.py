"""EngineState: the models of the engine as a front-end process knows them, and its form as a message."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_server.core.loader import Loaded, LoadedVersion
from tpuserve_server.core.model_record import ModelRecord, VersionRecord, serving_records
from tpuserve_server.core.types import Precision, ServableId, Signature
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


def read_models(models: Mapping[str, ModelRecord]) -> tuple[dict[str, ModelRecord], list[tuple[ServableId, Loaded]]]:
    """Return copies of the records without loaded versions and handles, and the versions that answer requests.

    The registry's lock guards the records, so that both show the same moment.
    """
    serving = [(one.aspired.servable, one.loaded) for one in serving_records(models) if one.loaded is not None]
    return {name: _copy(model) for name, model in models.items()}, serving


def is_special(loaded: Loaded) -> bool:
    """Return whether only the engine can answer the requests of a version: an ensemble, or one with a cache."""
    return not isinstance(loaded, LoadedVersion) or loaded.responses is not None


def _copy(model: ModelRecord) -> ModelRecord:
    versions = {
        number: VersionRecord(one.aspired, one.is_aspired, one.state, one.error, None, 0, one.waits, one.remark)
        for number, one in model.versions.items()
    }
    labels, pending = dict(model.labels), dict(model.pending)
    return dataclasses.replace(model, versions=versions, latest=None, labels=labels, pending=pending)
