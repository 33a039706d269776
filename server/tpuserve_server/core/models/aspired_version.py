"""AspiredVersion: a version that should be served, as a source reports it. Uses the types of core/terms/types.py."""

from dataclasses import dataclass

from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId


@dataclass(frozen=True, slots=True)
class AspiredVersion:
    """A version that should be served, and its location. `fingerprint` changes when its contents change.

    `batching` and `response_cache_max_bytes` are those of its model's configuration. A version of an `ensemble` has no
    files; its fingerprint changes with the versions of its steps. `refusal` is that of its storage.
    """

    servable: ServableId
    location: VersionLocation
    fingerprint: str = ""
    batching: BatchingParameters | None = None
    response_cache_max_bytes: int | None = None
    ensemble: Ensemble | None = None
    refusal: str = ""

    @property
    def is_worth_retrying(self) -> bool:
        """Whether a failed load may succeed without a change. A load of an ensemble depends only on its steps."""
        return self.ensemble is None and not self.refusal

    def has_changed_since(self, tried: "AspiredVersion") -> bool:
        """Return whether a load that failed for `tried` may succeed for this version."""
        return (self.fingerprint, self.batching) != (tried.fingerprint, tried.batching)
