"""The interface between the core and the executors: Executor, VersionFiles, Servable, InFlight, and DeviceMetrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.terms.types import Precision, ServableId, Signature, Tensors


class InFlight(Protocol):
    """A run that was dispatched to the device."""

    def result(self) -> Tensors:
        """Block until the device has finished, and return the outputs by name.

        Called once: by the thread that dispatched the run, or by any other if `Servable.max_in_flight` is more than 1.

        Raises:
            ServingError: the run failed. InvalidArgument and similar codes such as OutOfRange blame the inputs, others
                the server.
        """
        ...


class Servable(Protocol):
    """One loaded version. Several threads may call `dispatch` at once. `close` comes after the last `result`."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        ...

    @property
    def device(self) -> str:
        """Name of the device, for people: `CPU (TensorFlow 2.21)`."""
        ...

    @property
    def max_in_flight(self) -> int:
        """Maximum number of dispatched runs whose result has not been taken, by all threads together. Constant.

        1: `dispatch` returns after the run has ended, or dispatching the next run earlier gains nothing. More:
        `dispatch` returns at once, runs execute in the order of their dispatch, and a run may fail without the others.
        One thread takes the results in order. Another joins and dispatches the next batch meanwhile.
        """
        ...

    @property
    def unrepeatable(self) -> str:
        """Why equal requests may get different outputs, for people; "" if they cannot.

        Reliable only for a version with `VersionFiles.is_cached`.
        """
        ...

    @property
    def never_blocks(self) -> bool:
        """Whether a run only computes, without unbounded loops: it never waits for a file, another run or a device.

        An event loop may then run the version, while its runs are short. Constant.
        """
        ...

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Start a run. The caller may reuse the arrays only after `InFlight.result` has returned or raised.

        Raises:
            ServingError: the run could not be started.
        """
        ...

    def close(self) -> None:
        """Release memory and threads. Blocks until done."""
        ...


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """A version's directory, and the settings of its manifest that concern more than one kind of executor.

    `allows_bfloat16`: the exporter has checked the version with bfloat16 kernels. `is_cached`: the operator wants a
    response cache, so the executor must find whether the outputs are repeatable. `fingerprint` changes with the
    contents of the directory. `precision` has the tolerance of the exporter's check, or is None. `batch_sizes` are the
    sizes that batches of any signature are padded to, ascending; empty if unknown.
    """

    path: Path
    allows_bfloat16: bool = False
    is_cached: bool = False
    fingerprint: str = ""
    precision: Precision | None = None
    batch_sizes: tuple[int, ...] = ()

    def part(self, folder: str) -> "VersionFiles":
        """Return a model in a directory of the version, with the same settings."""
        return replace(self, path=self.path / folder)


class Executor(Protocol):
    """Loads version directories onto a device."""

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Load the version. Slow.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...


class DeviceGauge(Protocol):
    """One device, read whenever a metric is collected. Thread-safe."""

    @property
    def name(self) -> str:
        """Name of the device, such as `tpu:0`."""
        ...

    def busy_s(self) -> float:
        """Return the seconds in which a run used the device, since the server began to use it."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """Return the memory by kind: `in_use`, `peak` and `limit`, as far as the device reports them."""
        ...


class DeviceMetrics(Protocol):
    """The receiver of measurements of devices. Every method is cheap and thread-safe."""

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """Record that these devices are in use from now on. A repeated name refers to the same device."""
        ...

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """Record that a version is loaded onto `device`: `tpu`, `gpu` or `cpu`.

        `fallback` is a word for the reason why no better device was used.
        """
        ...

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """Record that all programs of a version were compiled, or loaded from a cache, within `duration_s`."""
        ...

    def graph_built(self, *, duration_s: float, with_xla: bool = False) -> None:
        """Record a graph or a program that a runtime has prepared to run. `with_xla`: XLA has compiled it."""
        ...
