"""Loader: turns a version directory into a version that answers requests, and releases it again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.aspired_version import AspiredVersion
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.response_cache import VersionResponses
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Precision


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A warmed servable and its batcher, which continues to update `costs`.

    `path` is the result of its storage's `fetch`. `labels` are the names of its classes, in the order of its scores.
    `precision` is the manifest's, or None without one. `responses` is None for a version without response cache.
    """

    servable: Servable
    batcher: Batcher
    notes: tuple[str, ...] = ()
    path: Path | None = None
    costs: CostModel = field(default_factory=CostModel)
    labels: tuple[str, ...] = ()
    precision: Precision | None = None
    responses: VersionResponses | None = None


class Loader(Protocol):
    """Loads and unloads versions.

    Obligations:

    1. `load` returns only when the version can answer at full speed: verified, loaded, every bucket warmed.
    2. `load` either returns or raises. If it raises, it has released everything that it acquired.
    3. `unload` is called once for each `load` that returned, after the last request has ended.
    """

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        """Load and warm a version. Slow; runs on a loading thread.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...

    def unload(self, loaded: LoadedVersion) -> None:
        """Unload a version. Blocks until its memory and threads are released."""
        ...
