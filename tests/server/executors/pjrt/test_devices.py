import importlib.util
import os
import subprocess
import sys
from pathlib import Path

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
from tpuserve_server.executors.pjrt import devices
from tpuserve_server.executors.pjrt.devices import DeviceHealth, find_devices
from tpuserve_server.executors.pjrt.failures import device_errors

NAMES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES")
LOOK = """
from tpuserve_server.executors.pjrt.devices import FailedPrecondition, find_devices
try:
    find_devices("tpu")
except FailedPrecondition as error:
    print(error.message)
"""


@pytest.fixture
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # restores the variable at the end, even if the test sets it
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_unset")
@pytest.mark.parametrize(
    ("jax_found_none", "drivers", "told"),
    [("1", [], True), ("1", ["/dev/accel0"], False), ("", [], False)],
    ids=["no TPU", "the user has said so, but there is one", "a TPU"],
)
def test_libtpu_is_told_of_a_tpu_only_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, jax_found_none: str, drivers: list[str], told: bool
) -> None:
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", jax_found_none)
    monkeypatch.setattr(devices, "glob", lambda pattern: [path for path in drivers if path.startswith(pattern[:-1])])
    devices._quieten_libtpu()
    assert [name in os.environ for name in NAMES] == [told, told]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu here")
@pytest.mark.skipif(bool(list(Path("/dev").glob("accel*"))), reason="a TPU is here")
def test_a_machine_without_a_tpu_gets_the_reason_and_no_line_of_libtpus() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", *NAMES)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("PJRT found only cpu")
    assert "E0000" not in done.stderr
    assert "InitGoogle" not in done.stderr


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
