from collections.abc import Mapping
from dataclasses import dataclass

import jax
import pytest

from tpuserve_server.core.terms.errors import Code, Internal, ResourceExhausted, ServingError
from tpuserve_server.executors.pjrt.failures import FreeMemory, device_errors


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.\nBufferAssignment OOM",
            Code.RESOURCE_EXHAUSTED,
            "The run failed, the device is out of memory: Out of memory while trying to allocate 4294967296 bytes.",
        ),
        ("INVALID_ARGUMENT: no such thing", Code.INVALID_ARGUMENT, "The run failed: no such thing"),
        ("UNAVAILABLE: \n the chip is gone", Code.UNAVAILABLE, "The run failed: the chip is gone"),
        ("SOMETHING_NEW: of this", Code.INTERNAL, "The run failed: SOMETHING_NEW: of this"),
        ("no code at all\nand a stack", Code.INTERNAL, "The run failed: no code at all"),
    ],
)
def test_what_xla_raises_has_its_code_and_one_line(raised: str, code: Code, message: str) -> None:
    with pytest.raises(ServingError) as caught, device_errors("The run"):
        raise jax.errors.JaxRuntimeError(raised)
    assert caught.value.code is code
    assert caught.value.message == message


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(KeyError), device_errors("The run"):
        raise KeyError("x")


GIB = 2**30


@dataclass(frozen=True)
class Gauge:
    """A device with a given memory use."""

    memory: Mapping[str, int]
    name: str = "tpu:0"

    def busy_s(self) -> float:
        return 0.0

    def memory_bytes(self) -> Mapping[str, int]:
        return self.memory


def of(*in_use: int) -> FreeMemory:
    return FreeMemory.of([Gauge({"in_use": one, "limit": 16 * GIB, "peak": 16 * GIB}) for one in in_use])


@pytest.mark.parametrize(
    ("free", "asked", "said"),
    [
        (of(15 * GIB, 4 * GIB), 3 * GIB // 2, "1.5 GiB requested, 1.0 GiB of 16.0 GiB free before"),
        (
            of(4 * GIB),
            GIB,
            "1.0 GiB requested, 12.0 GiB of 16.0 GiB free before, but in pieces or used by another process",
        ),
        (of(16 * GIB - 512), None, "512 bytes of 16.0 GiB free before"),
        (FreeMemory.of([Gauge({})]), 2**20, "1.0 MiB requested, the device does not report its free memory"),
        (FreeMemory.of([]), 2**60, "1048576.0 TiB requested, the device does not report its free memory"),
    ],
)
def test_want_of_memory_is_said_with_what_was_asked_for_and_the_fullest_device(
    free: FreeMemory, asked: int | None, said: str
) -> None:
    with pytest.raises(ResourceExhausted) as caught, free.errors("Running b8.jaxexport", asked):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\nBufferAssignment")
    assert caught.value.message == (
        f"Running b8.jaxexport failed, the device is out of memory: Out of memory allocating 99 bytes ({said})"
    )


def test_other_errors_are_not_about_memory() -> None:
    with pytest.raises(Internal, match=r"^Running it failed: the chip is gone$"), of(0).errors("Running it", GIB):
        raise jax.errors.JaxRuntimeError("INTERNAL: the chip is gone")
