"""Loader: turns a version directory into something that answers, and back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.aspired_version import AspiredVersion
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Precision


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A servable, warmed, behind its batcher, which goes on learning `costs`.

    `path` is what its storage's `fetch` returned. `labels` are the names of its classes, in the order of its scores.
    `precision` is the manifest's, None without one.
    """

    servable: Servable
    batcher: Batcher
    notes: tuple[str, ...] = ()
    path: Path | None = None
    costs: CostModel = field(default_factory=CostModel)
    labels: tuple[str, ...] = ()
    precision: Precision | None = None


class Loader(Protocol):
    """Obligations:

    1. `load` returns only when the version can answer at full speed: verified, loaded, every bucket warmed.
    2. `load` either returns or raises; when it raises it has given back all it took.
    3. `unload` is called once for each `load` that returned, after the last request has left.
    """

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        """Slow; runs on a loading thread.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...

    def unload(self, loaded: LoadedVersion) -> None:
        """Blocks until memory and threads are given back."""
        ...
