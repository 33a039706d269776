"""The seam between the choice of an executor and those that it chooses from: Candidate, Refusal."""

import logging
from dataclasses import dataclass
from typing import Protocol

from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a candidate leaves a version to the next.

    `error` has the reason, for the status and the log. `word` is the metric's; with an empty one, nothing is reported:
    the version has nothing for this candidate. `failed` names what the candidate tried and could not use; the error of
    the next candidate names it too. `level` is that of the log.
    """

    error: ServingError
    word: str = ""
    failed: str = ""
    level: int = logging.INFO


class Candidate(Protocol):
    """An executor that runs some versions, and says of the others why not. Called by several loading threads at once.

    A candidate whose runtime takes long to import imports it for the first version that it takes.
    """

    @property
    def name(self) -> str:
        """What runs its versions, in the log: `TensorFlow on the CPU`."""
        ...

    @property
    def kind(self) -> str:
        """What its versions run on, for the metric: `tpu`, `gpu` or `cpu`."""
        ...

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """Load the version, or leave it to the next candidate; slow.

        Raises:
            ServingError: the version cannot be loaded, and no other candidate is to try it.
        """
        ...

    def tracer(self) -> Tracer | None:
        """Return what records the runs of this candidate; None as long as it has none of its own to record."""
        ...
