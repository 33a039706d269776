"""ModelConfig: what an operator says about one model, whatever file, flag or request said it."""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from tpuserve_server.core.batching.parameters import BatchingParameters

# The one platform there is (model_servers/model_platform_types.h).
TENSORFLOW_PLATFORM = "tensorflow"


class _Kind(enum.Enum):
    LATEST = enum.auto()
    ALL = enum.auto()
    SPECIFIC = enum.auto()


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the versions that lie in a base path are served. Make one with `latest`, `all` or `specific`."""

    _kind: _Kind = _Kind.LATEST
    _count: int = 1
    _versions: frozenset[int] = frozenset()

    @classmethod
    def latest(cls, num_versions: int = 1) -> Self:
        """The `num_versions` highest; 0 is taken for 1 (sources/storage_path/file_system_storage_path_source.cc)."""
        return cls(_Kind.LATEST, max(num_versions, 1))

    @classmethod
    def all(cls) -> Self:
        """Every one."""
        return cls(_Kind.ALL)

    @classmethod
    def specific(cls, versions: Collection[int]) -> Self:
        """These and no others."""
        return cls(_Kind.SPECIFIC, 0, frozenset(versions))

    def choose(self, present: Collection[int]) -> list[int]:
        """The versions to serve of those `present`, highest first."""
        ordered = sorted(present, reverse=True)
        if self._kind is _Kind.LATEST:
            return ordered[: self._count]
        return [number for number in ordered if self._kind is _Kind.ALL or number in self._versions]

    def absent(self, present: Collection[int]) -> list[int]:
        """The versions asked for by number that are not `present`, lowest first."""
        return sorted(self._versions.difference(present))


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """How a model's requests are logged: upstream's LogCollectorConfig and SamplingConfig in one.

    `sampling_rate` is the share of requests that is written, from 0 to 1.
    """

    type: str
    filename_prefix: str
    sampling_rate: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `base_path` is an absolute folder or a URI such as gs://bucket/model; it holds version folders.

    `version_labels` maps a label to the version number it stands for. `batching` goes over what is said of all models,
    for the versions that are loaded from then on. Nothing here has been checked yet.
    """

    name: str
    base_path: str
    platform: str = TENSORFLOW_PLATFORM
    version_policy: VersionPolicy = VersionPolicy()
    version_labels: Mapping[str, int] = field(default_factory=dict)
    logging: LoggingConfig | None = None
    batching: BatchingParameters | None = None
