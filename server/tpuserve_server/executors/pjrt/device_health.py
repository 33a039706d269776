"""DeviceHealth: decides after a failed run whether the device still works."""

from collections.abc import Callable, Sequence
from typing import Final

import jax
import numpy as np

from tpuserve_server.core.terms.errors import Code, DeviceLost, ServingError

# Codes of errors that may mean a lost device. XLA reports many other failures with the same codes, and the messages
# differ between devices and versions: `INTERNAL: Core halted unexpectedly`, `INTERNAL: … CUDA_ERROR_ILLEGAL_ADDRESS`,
# `FAILED_PRECONDITION: The program continuator has halted unexpectedly`. A trial on the device decides.
_SUSPECT: Final = frozenset(
    (Code.UNKNOWN, Code.FAILED_PRECONDITION, Code.ABORTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


def try_device(device: jax.Device) -> None:
    """Copy an array to a device, compute with it, and copy the result back.

    Raises:
        jax.errors.JaxRuntimeError: the device fails.
    """
    ones = jax.device_put(np.ones(8, np.float32), device)
    np.asarray(ones + ones)


class DeviceHealth:
    """The state of a mesh's devices. Any thread may call it."""

    def __init__(self, devices: Sequence[jax.Device], trial: Callable[[jax.Device], None] = try_device) -> None:
        """Try `devices` with `trial`, which raises JaxRuntimeError if a device fails."""
        self._devices = tuple(devices)
        self._trial = trial

    def explain(self, error: ServingError) -> ServingError:
        """Return the error of a failed run, or DeviceLost if a device no longer works. Blocks during the trial.

        A trial that hangs is part of the run, so the watchdog finds it.
        """
        if error.code not in _SUSPECT:
            return error
        for device in self._devices:
            try:
                self._trial(device)
            except jax.errors.JaxRuntimeError as failure:
                # A full device is not a lost one.
                if not str(failure).startswith(Code.RESOURCE_EXHAUSTED.name):
                    return DeviceLost(f"{error.message} (and {device} fails a trial)")
        return error
