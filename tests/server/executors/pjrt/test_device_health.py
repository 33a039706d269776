"""Tests for lost devices. A CPU cannot be lost, so a trial with the texts of real failures stands for one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuserve_server.core.terms.errors import (
    Code,
    DeviceLost,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unavailable,
    error_for_code,
)
from tpuserve_server.executors.pjrt.device_health import DeviceHealth
from tpuserve_server.executors.pjrt.devices import find_devices
from tpuserve_server.executors.pjrt.failures import device_errors

# As jax-ml/jax issue 25002, jax-ml/jax issue 9642 and sgl-project/sglang-jax issue 1216 report them.
CUDA = "INTERNAL: CUDA error: Could not synchronize CUDA stream: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
HALTED = "INTERNAL: Core halted unexpectedly: No error message available as no compiler metadata was provided."
CONTINUATOR = "FAILED_PRECONDITION: The program continuator has halted unexpectedly."


def failing(text: str) -> DeviceHealth:
    """Return the health of a CPU whose trial fails with this text."""

    def trial(device: jax.Device) -> None:
        raise jax.errors.JaxRuntimeError(text)

    return DeviceHealth(find_devices("cpu"), trial)


def served(text: str) -> ServingError:
    """Return the error of a run that fails with this text."""
    with pytest.raises(ServingError) as caught, device_errors("The run"):
        raise jax.errors.JaxRuntimeError(text)
    return caught.value


@pytest.mark.parametrize("text", [CUDA, HALTED, CONTINUATOR])
def test_device_that_also_fails_its_trial_is_lost(text: str) -> None:
    lost = failing(text).explain(served(text))
    assert (type(lost), lost.code) == (DeviceLost, Code.UNAVAILABLE)
    assert lost.message.startswith("The run failed: ")
    assert "fails a trial" in lost.message


@pytest.mark.parametrize("text", [CUDA, HALTED, CONTINUATOR])
def test_device_that_passes_its_trial_is_not_lost(text: str) -> None:
    error = served(text)
    assert DeviceHealth(find_devices("cpu")).explain(error) is error


@pytest.mark.parametrize("error", [InvalidArgument("x"), ResourceExhausted("x"), error_for_code(Code.CANCELLED, "x")])
def test_errors_of_the_request_need_no_trial(error: ServingError) -> None:
    assert failing(CUDA).explain(error) is error


def test_full_device_is_not_lost() -> None:
    error = Internal("x")
    assert failing("RESOURCE_EXHAUSTED: Out of memory allocating 32 bytes.").explain(error) is error


def test_unavailable_of_another_part_is_not_a_lost_device() -> None:
    error = Unavailable("x")
    assert DeviceHealth(find_devices("cpu")).explain(error) is error


def test_real_run_that_needs_too_much_memory_fails_alone() -> None:
    def allocate(x: jax.Array) -> jax.Array:
        return jnp.zeros((1 << 44,), jnp.float32) + x

    with pytest.raises(ResourceExhausted, match="out of memory") as caught, device_errors("The run"):
        jax.block_until_ready(jax.jit(allocate)(np.float32(1)))
    health = DeviceHealth(find_devices("cpu"))
    assert health.explain(caught.value) is caught.value
    # The device still works.
    assert type(health.explain(Internal("x"))) is Internal
