"""What a source reports: a version that ought to be served, above the value types of core/types.py."""

from dataclasses import dataclass

from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.storage import VersionLocation
from tpuserve_server.core.types import ServableId


@dataclass(frozen=True, slots=True)
class AspiredVersion:
    """A version that ought to be served, and where it lies. `fingerprint` changes when its contents change.

    `batching` is what its model's configuration says of it.
    """

    servable: ServableId
    location: VersionLocation
    fingerprint: str = ""
    batching: BatchingParameters | None = None

    def has_changed_since(self, tried: "AspiredVersion") -> bool:
        """Whether a load that failed for `tried` may succeed for this."""
        return (self.fingerprint, self.batching) != (tried.fingerprint, tried.batching)
