"""The seam between the core and what runs models: Executor, VersionFiles, Servable, InFlight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.types import ServableId, Signature, Tensors


class InFlight(Protocol):
    """Work handed to the device."""

    def result(self) -> Tensors:
        """Block until the device has finished; the outputs by name. Called once, by the thread that dispatched.

        Raises:
            ServingError: the run failed. InvalidArgument, OutOfRange-like codes blame the inputs, others the server.
        """
        ...


class Servable(Protocol):
    """One loaded version. `dispatch` may be called by several threads at once; `close` after the last `result`."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        ...

    @property
    def device(self) -> str:
        """What it runs on, for people: `CPU (TensorFlow 2.21)`."""
        ...

    @property
    def max_in_flight(self) -> int:
        """How many runs may have been dispatched whose result nobody has taken yet, by all threads together; constant.

        1: `dispatch` returns when the run has ended, or nothing is won by dispatching the next before. More: `dispatch`
        returns at once, runs follow each other in the order of their dispatch, and one may fail without the others. The
        next batch is joined while the last one runs; who dispatches takes the results in order.
        """
        ...

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Start running. Arrays may be reused by the caller only after `InFlight.result` has returned or raised.

        Raises:
            ServingError: the run could not be started.
        """
        ...

    def close(self) -> None:
        """Give back memory and threads; blocks until done."""
        ...


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """A version as an executor gets it: its folder, and what its manifest says to executors of more than one kind.

    `allows_bfloat16`: the exporter has checked bfloat16 kernels against it.
    """

    path: Path
    allows_bfloat16: bool = False

    def part(self, folder: str) -> "VersionFiles":
        """Return a model in a folder of the version, to which the same applies."""
        return replace(self, path=self.path / folder)


class Executor(Protocol):
    """Loads version directories onto a device."""

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Load the version; slow.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...
