"""Interface of ExecutorChoice to the executors that it chooses from: Candidate and Refusal."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a candidate leaves a version to the next candidate.

    `error` has the reason, for the status and the log. `label` is the reason in metrics. A refusal with an empty
    label is not reported, because the version has no files for this candidate.

    `failed` names the part of the version that the candidate tried and could not use. The error of the next candidate
    names it too. `remedy` is a setting with which the candidate may load the version, for the error of a version whose
    last runtime is not installed. `level` is the level of the log message.
    """

    error: ServingError
    label: str = ""
    failed: str = ""
    remedy: str = ""
    level: int = logging.INFO


class Candidate(Protocol):
    """Executor that runs some versions, and refuses the others with a reason. Thread-safe.

    A candidate imports a slow runtime only for the first version that it takes.
    """

    @property
    def name(self) -> str:
        """Name in the log, such as `TensorFlow on the CPU`."""
        ...

    @property
    def kind(self) -> str:
        """Kind of device that its versions run on, for metrics: `tpu`, `gpu` or `cpu`."""
        ...

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """Load the version, or leave it to the next candidate. Slow.

        Raises:
            ServingError: the version cannot be loaded, and no other candidate may try it.
        """
        ...

    def tracer(self) -> Tracer | None:
        """Return a tracer of this candidate's runs, or None while it has no runs to record."""
        ...


class ChosenServable:
    """Servable that wraps another one."""

    def __init__(self, servable: Servable, device: str, closed: Callable[[], None] | None = None) -> None:
        """Wrap `servable`. `close` calls `closed` at its end, even if it fails."""
        self._servable = servable
        # Copied, because every batch reads them.
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.max_in_flight = servable.max_in_flight
        self.unrepeatable = servable.unrepeatable
        self.never_blocks = servable.never_blocks
        self.device = device
        self._closed = closed

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch."""
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """Implement Servable.close."""
        try:
            self._servable.close()
        finally:
            if self._closed is not None:
                self._closed()
