"""ModelConfig: an operator's configuration of one model, from a file, flag or request."""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.options import LoadPolicy

# Upstream's only platform (model_servers/model_platform_types.h).
TENSORFLOW_PLATFORM = "tensorflow"
# The platform of ensembles, as in Triton.
ENSEMBLE_PLATFORM = "ensemble"


class _Kind(enum.Enum):
    LATEST = enum.auto()
    ALL = enum.auto()
    SPECIFIC = enum.auto()


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """The rule that chooses versions in a base path. Create one with `latest`, `all` or `specific`."""

    _kind: _Kind = _Kind.LATEST
    _count: int = 1
    _versions: frozenset[int] = frozenset()

    @classmethod
    def latest(cls, num_versions: int = 1) -> Self:
        """Choose the `num_versions` highest. 0 means 1 (sources/storage_path/file_system_storage_path_source.cc)."""
        return cls(_Kind.LATEST, max(num_versions, 1))

    @classmethod
    def all(cls) -> Self:
        """Choose every version."""
        return cls(_Kind.ALL)

    @classmethod
    def specific(cls, versions: Collection[int]) -> Self:
        """Choose only these versions."""
        return cls(_Kind.SPECIFIC, 0, frozenset(versions))

    @property
    def count(self) -> int | None:
        """Number of the highest versions that it chooses, or None for another rule."""
        return self._count if self._kind is _Kind.LATEST else None

    @property
    def versions(self) -> list[int] | None:
        """The versions that it names, ascending, or None for another rule."""
        return sorted(self._versions) if self._kind is _Kind.SPECIFIC else None

    def choose(self, present: Collection[int]) -> list[int]:
        """Return the versions to serve of those `present`, highest first."""
        ordered = sorted(present, reverse=True)
        if self._kind is _Kind.LATEST:
            return ordered[: self._count]
        return [number for number in ordered if self._kind is _Kind.ALL or number in self._versions]

    def absent(self, present: Collection[int]) -> list[int]:
        """Return the versions that were requested by number and are not `present`, lowest first."""
        return sorted(self._versions.difference(present))


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """Settings of a model's request log: upstream's LogCollectorConfig and SamplingConfig in one.

    `sampling_rate` is the share of requests to log, from 0 to 1.
    """

    type: str
    filename_prefix: str
    sampling_rate: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `base_path` is an absolute directory or a URI such as gs://bucket/model. It holds version directories.

    `version_labels` maps labels to version numbers. `batching` overrides the parameters for all models, for versions
    that are loaded later. `response_cache_max_bytes` does so for the bound of the response cache; 0 is no cache. A
    model with an `ensemble` has no base path. `load_policy` overrides that of all models. No field has been checked
    yet.
    """

    name: str
    base_path: str
    platform: str = TENSORFLOW_PLATFORM
    version_policy: VersionPolicy = VersionPolicy()
    version_labels: Mapping[str, int] = field(default_factory=dict)
    logging: LoggingConfig | None = None
    batching: BatchingParameters | None = None
    response_cache_max_bytes: int | None = None
    ensemble: Ensemble | None = None
    load_policy: LoadPolicy | None = None
