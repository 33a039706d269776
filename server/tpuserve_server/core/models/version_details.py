"""VersionDetails: everything that the server's status shows about a version that serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpuserve_server.core.batching.cost_model import CurveSnapshot
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.loader import Loaded, LoadedEnsemble, LoadedVersion
from tpuserve_server.core.models.response_cache import CacheCounts
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Signature


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """One version at one moment.

    `batching` has the signatures whose requests share batches. `queued` has those with waiting requests. `cache` is
    None without response cache. `path` is the local directory, and None for an ensemble.
    """

    signatures: Mapping[str, Signature] = field(default_factory=dict)
    batching: Mapping[str, BatchingOptions] = field(default_factory=dict)
    queued: Mapping[str, QueueDepth] = field(default_factory=dict)
    costs: tuple[CurveSnapshot, ...] = ()
    labels: tuple[str, ...] = ()
    cache: CacheCounts | None = None
    load_s: float | None = None
    path: Path | None = None
    is_ensemble: bool = False


def details_of(loaded: Loaded) -> VersionDetails:
    """Return the details of a version that a handle keeps loaded."""
    return _ensemble_details(loaded) if isinstance(loaded, LoadedEnsemble) else _version_details(loaded)


def _version_details(loaded: LoadedVersion) -> VersionDetails:
    signatures, batcher = loaded.servable.signatures, loaded.batcher
    options = {name: batcher.options.get(name) for name in signatures}
    return VersionDetails(
        signatures=signatures,
        batching={name: one for name, one in options.items() if one is not None},
        queued=batcher.queued(),
        costs=loaded.costs.snapshot(),
        labels=loaded.labels,
        cache=None if loaded.responses is None else loaded.responses.counts(),
        load_s=loaded.load_s,
        path=loaded.path,
    )


def _ensemble_details(loaded: LoadedEnsemble) -> VersionDetails:
    """Return the signature of an ensemble over the versions that serve its steps now, or none if a step has none."""
    try:
        steps = loaded.steps.hold()
    except ServingError:
        return VersionDetails(is_ensemble=True)
    try:
        return VersionDetails({steps.signature.name: steps.signature}, labels=steps.labels, is_ensemble=True)
    finally:
        steps.release()
