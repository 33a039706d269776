"""Candidate: the interface of ExecutorChoice to executors. Refusals, and servables and runs that candidates share."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import Servable, VersionFiles
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


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """Run that has ended in `dispatch`: implements InFlight."""

    outputs: Tensors

    def result(self) -> Tensors:
        """Return the outputs."""
        return self.outputs


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
        # The method of the other one, because every batch calls it.
        self.dispatch = servable.dispatch
        self.device = device
        self._closed = closed

    def close(self) -> None:
        """Implement Servable.close."""
        try:
            self._servable.close()
        finally:
            if self._closed is not None:
                self._closed()
